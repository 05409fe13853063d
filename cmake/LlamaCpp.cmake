# The engine: where its tree comes from and how it is compiled. The only file that sets LLAMA_* or GGML_* options.
#
# Provides the target `llama` (static) and the variables ANER_ENGINE_VERSION, ANER_ENGINE_COMMIT, ANER_ENGINE_ORIGIN.

set(_vendor ${CMAKE_SOURCE_DIR}/vendor/llama.cpp)
set(_unpack ${Python_EXECUTABLE} ${_vendor}/unpack.py)

if(ANER_LLAMA_CPP_DIR)
  # The user's own tree: built as it is, unpatched, and said so in the build info.
  set(_tree ${ANER_LLAMA_CPP_DIR})
  set(ANER_ENGINE_ORIGIN custom)
  set(ANER_ENGINE_COMMIT unknown)
  if(NOT EXISTS ${_tree}/include/llama.h)
    message(FATAL_ERROR "ANER_LLAMA_CPP_DIR=${_tree} has no include/llama.h: name the root of a llama.cpp tree.")
  endif()
else()
  set(ANER_ENGINE_ORIGIN pinned)
  set(ANER_ENGINE_COMMIT 0c1e57098)
  set(_tree ${CMAKE_BINARY_DIR}/llama.cpp)
  message(STATUS "aner: bringing the pinned llama.cpp (downloads 73 MiB once, when vendor/llama.cpp/source is absent)")
  execute_process(COMMAND ${_unpack} source ${_vendor}/source RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "aner: the pinned llama.cpp tree is not available, see above.")
  endif()
  execute_process(COMMAND ${_unpack} patched ${_vendor}/source ${_tree} RESULT_VARIABLE _failed)
  if(_failed)
    message(FATAL_ERROR "aner: a patch of vendor/llama.cpp/patches does not apply, see above.")
  endif()
  file(GLOB _patches CONFIGURE_DEPENDS ${_vendor}/patches/*.patch)
  foreach(_patch IN LISTS _patches)
    get_filename_component(_name ${_patch} NAME)
    list(APPEND ANER_ENGINE_PATCHES ${_name})
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_patches} ${_vendor}/tree.sha256)
endif()
set(ANER_ENGINE_VERSION 0.5.0)
set(ANER_ENGINE_TREE ${_tree})

# Only the library, static, with nothing exported.
set(BUILD_SHARED_LIBS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
foreach(_part COMMON TESTS TOOLS EXAMPLES SERVER APP UI IS_DEV)
  set(LLAMA_BUILD_${_part} OFF)
endforeach()
set(LLAMA_USE_PREBUILT_UI OFF)
set(LLAMA_OPENSSL OFF)
set(GGML_BUILD_TESTS OFF)
set(GGML_BUILD_EXAMPLES OFF)
set(GGML_CCACHE OFF)

# Build info is ours; the engine would otherwise read the git repository that happens to surround it.
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT ${ANER_ENGINE_COMMIT})
set(GIT_EXE ${CMAKE_COMMAND} -E true)
set(ENV{GIT_CEILING_DIRECTORIES} ${CMAKE_BINARY_DIR})

# CPU: our own persistent thread pool instead of OpenMP (fork, duplicate runtimes), the fast kernels on.
set(GGML_OPENMP OFF)
set(GGML_LLAMAFILE ON)
set(GGML_CPU_REPACK ON)
set(GGML_BLAS OFF)
set(GGML_ACCELERATE OFF)
set(GGML_NATIVE ${ANER_NATIVE})
if(NOT ANER_NATIVE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  foreach(_isa SSE42 AVX AVX2 FMA F16C BMI2)  # x86-64-v3
    set(GGML_${_isa} ON)
  endforeach()
endif()

set(GGML_CUDA ${ANER_CUDA})
set(GGML_CUDA_NCCL OFF)
set(GGML_METAL ${ANER_METAL})
set(GGML_METAL_EMBED_LIBRARY ON)
set(GGML_VULKAN ${ANER_VULKAN})

add_subdirectory(${_tree} ${CMAKE_BINARY_DIR}/engine EXCLUDE_FROM_ALL)

# This file holds nothing but a static initialiser that replaces the process's std::terminate handler.
get_target_property(_base_sources ggml-base SOURCES)
list(FILTER _base_sources EXCLUDE REGEX "(^|/)ggml\\.cpp$")
set_target_properties(ggml-base PROPERTIES SOURCES "${_base_sources}")

set(ANER_TILE_FIX OFF)
# GCC declares only 8 of the 64 bytes that _tile_loadconfig reads, so dead store elimination removes the rest of the tile
# configuration and the first AMX kernel dies with SIGILL. The check runs the pattern and looks at what arrives.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND EXISTS ${_tree}/ggml/src/ggml-cpu/amx/mmq.cpp)
  include(${CMAKE_CURRENT_LIST_DIR}/TileConfigStores.cmake)
  if(NOT ANER_TILE_CONFIG_STORES_KEPT)
    set(ANER_TILE_FIX ON)
    set_property(SOURCE ${_tree}/ggml/src/ggml-cpu/amx/mmq.cpp
      DIRECTORY ${_tree}/ggml/src PROPERTY COMPILE_OPTIONS "-fno-tree-dse;-fno-dse")
  endif()
endif()
