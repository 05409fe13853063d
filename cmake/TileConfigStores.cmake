# Sets ANER_TILE_CONFIG_STORES_KEPT: whether the compiler keeps all stores to the argument of _tile_loadconfig. The program
# is run and its result looked at, whatever the compiler's version; a cross build cannot run it and takes the safe answer.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
  if(NOT DEFINED ANER_TILE_CONFIG_EXIT)
    try_run(ANER_TILE_CONFIG_EXIT _compiled
      ${CMAKE_BINARY_DIR}/tile_config ${CMAKE_CURRENT_LIST_DIR}/tile_config_check.cpp
      COMPILE_DEFINITIONS -O3 -mamx-tile -mno-red-zone)
  endif()
  if(ANER_TILE_CONFIG_EXIT EQUAL 0)
    set(ANER_TILE_CONFIG_STORES_KEPT TRUE)
  else()
    set(ANER_TILE_CONFIG_STORES_KEPT FALSE)
  endif()
else()
  set(ANER_TILE_CONFIG_STORES_KEPT FALSE)
endif()
message(STATUS "aner: tile configuration stores kept by the compiler: ${ANER_TILE_CONFIG_STORES_KEPT}")
