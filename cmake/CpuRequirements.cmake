# Writes aner/_cpu_requirements.py: the CPU features that this build's instructions need, for a clean ImportError elsewhere.
set(_needed "")
set(_kind portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(_needed avx avx2 bmi2 f16c fma sse4_2)  # x86-64-v3, as cmake/LlamaCpp.cmake sets it
  if(ANER_NATIVE AND EXISTS /proc/cpuinfo)
    set(_kind native)
    file(STRINGS /proc/cpuinfo _lines REGEX "^flags" LIMIT_COUNT 1)
    string(REGEX MATCHALL "(sse4_2|avx[a-z0-9_]*|amx_[a-z0-9]+|bmi[12]|f16c|fma)" _needed "${_lines}")
    list(REMOVE_DUPLICATES _needed)
    list(SORT _needed)
  endif()
endif()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/_cpu_requirements.py
"# Written by the build: what its instructions need of a CPU.
KIND = \"${_kind}\"
REQUIRED = \"${_needed}\".split(\";\")
")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_cpu_requirements.py DESTINATION aner)
