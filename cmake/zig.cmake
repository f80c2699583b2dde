# The clang and libc++ of zig (PyPI package ziglang) as a cross compiler; the toolchain files that
# include this one state the target in FANIN_ZIG_TARGET.
find_program(FANIN_ZIG NAMES zig python-zig REQUIRED)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FANIN_ZIG)
set(CMAKE_CXX_COMPILER ${FANIN_ZIG} c++ -target ${FANIN_ZIG_TARGET})
set(FANIN_DOTPROD_OPTIONS -mcpu=generic+v8_2a+dotprod)  # zig's name for GCC's armv8.2-a
# CMake takes an archiver without arguments only.
foreach(tool ar ranlib)
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/zig-${tool})
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#!/bin/sh\nexec '${FANIN_ZIG}' ${tool} \"\$@\"\n" @ONLY)
  file(CHMOD ${wrapper} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  string(TOUPPER ${tool} name)
  set(CMAKE_${name} ${wrapper})
endforeach()
