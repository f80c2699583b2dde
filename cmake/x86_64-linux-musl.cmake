# Build for Linux with musl (Alpine), by the clang and libc++ of zig (PyPI package ziglang):
#   cmake -S . -B build/musl -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-linux-musl.cmake -DFANIN_PYTHON=OFF
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)

find_program(FANIN_ZIG NAMES zig python-zig REQUIRED)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FANIN_ZIG)
set(CMAKE_CXX_COMPILER ${FANIN_ZIG} c++ -target x86_64-linux-musl)
# CMake takes an archiver without arguments only.
foreach(tool ar ranlib)
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/zig-${tool})
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#!/bin/sh\nexec '${FANIN_ZIG}' ${tool} \"\$@\"\n" @ONLY)
  file(CHMOD ${wrapper} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  string(TOUPPER ${tool} name)
  set(CMAKE_${name} ${wrapper})
endforeach()
