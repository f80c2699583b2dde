# What C and C++ projects find the installed op library with: a CMake package, a pkg-config file and a
# header, all beside the library and relative to it, since a Python package may lie anywhere.
if(FANIN_DESTINATION STREQUAL "fanin_cuda")
  return()  # they belong to the wheel of fanin
endif()
include(CMakePackageConfigHelpers)
set(package ${CMAKE_CURRENT_LIST_DIR}/package)
configure_file(${package}/fanin-config.cmake.in fanin-config.cmake @ONLY)
configure_file(${package}/fanin.pc.in fanin.pc @ONLY)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fanin-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fanin-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/fanin-config-version.cmake DESTINATION fanin/ort_ops/cmake)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fanin.pc DESTINATION fanin/ort_ops/pkgconfig)
install(DIRECTORY ${package}/include DESTINATION fanin/ort_ops)
