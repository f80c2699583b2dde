# What makes memory errors harder to exploit, on everything that is built: ELF files whose tables of
# functions are read only once loaded, checks of the stack's guard and of buffers whose sizes the
# compiler knows, and branches that only go where one is meant to arrive. Each where the compiler has
# it; tests/ort_ops/test_hardening.py reads it back from the files.
include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckLinkerFlag)

# Sanitizers bring their own checks; and beside the stack protector, GCC 12 misplaces vectors of 64
# bytes on the stack that AddressSanitizer makes up.
if(NOT FANIN_SANITIZE)
  set(hardening "")
  foreach(flag -fstack-protector-strong -fcf-protection=full -mbranch-protection=standard)
    string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
    check_cxx_compiler_flag(${flag} ${has})
    if(${has})
      list(APPEND hardening ${flag})
    endif()
  endforeach()
  if(hardening)
    list(JOIN hardening "," host_hardening)
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${hardening}>"
                        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_hardening}>")
  endif()

  # An older libc takes 3 for 2, with a warning. Distributions may define it themselves.
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("
    #include <cstring>
    #if !defined(__has_builtin)
    #error too old
    #elif !__has_builtin(__builtin_dynamic_object_size)
    #error too old
    #endif
    int main() { return static_cast<int>(std::strlen(\"\")); }" FANIN_HAS_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(level 2)
  if(FANIN_HAS_FORTIFY_3)
    set(level 3)
  endif()
  # It needs optimization.
  set(optimized_cxx "$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>")
  add_compile_options("$<${optimized_cxx}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${level}>")
endif()

foreach(flag -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  string(MAKE_C_IDENTIFIER "FANIN_HAS${flag}" has)
  check_linker_flag(CXX ${flag} ${has})
  if(${has})
    add_link_options(${flag})
  endif()
endforeach()
