# The extension module: _native.pyx through Cython, linked with everything, exporting its init symbol and nothing else.
set(_pyx ${CMAKE_SOURCE_DIR}/aner_native/bindings/_native.pyx)
set(_cpp ${CMAKE_CURRENT_BINARY_DIR}/aner_native.cpp)
file(GLOB _pxd CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/aner_native/bindings/*.pxd)

add_custom_command(
  OUTPUT ${_cpp}
  COMMAND ${Python_EXECUTABLE} -m cython -3 --cplus --fast-fail -Wextra --module-name aner_native ${_pyx} -o ${_cpp}
  DEPENDS ${_pyx} ${_pxd}
  COMMENT "Cython: aner_native"
  VERBATIM)

Python_add_library(aner_native MODULE WITH_SOABI ${_cpp})
target_link_libraries(aner_native PRIVATE aner_engine)
target_compile_options(aner_native PRIVATE -fvisibility=hidden)
configure_file(${CMAKE_SOURCE_DIR}/aner_native/core/build_info.hpp.in ${CMAKE_CURRENT_BINARY_DIR}/build_info.hpp @ONLY)
target_include_directories(aner_native PRIVATE ${CMAKE_CURRENT_BINARY_DIR})

if(APPLE)
  target_link_options(aner_native PRIVATE -Wl,-exported_symbol,_PyInit_aner_native)
else()
  target_link_options(aner_native PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map -Wl,-Bsymbolic -Wl,--gc-sections)
endif()
install(TARGETS aner_native LIBRARY DESTINATION .)
install(FILES ${CMAKE_SOURCE_DIR}/aner_native/bindings/aner_native.pyi DESTINATION .)
