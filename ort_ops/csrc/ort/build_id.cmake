# Writes build_id(): the version and a hash of all native sources, so that it is the same wherever and
# whenever they are built. Run with -DROOT=... -DVERSION=... -DOUT=...
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/*.cc ${ROOT}/*.h ${ROOT}/*.cu ${ROOT}/*.cuh)
list(SORT sources)
set(all "")
foreach(source IN LISTS sources)
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND all "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#include "ort/cuda_library.h"

namespace fanin::ort {

const char* build_id() { return "@VERSION@-@hash@"; }

}  // namespace fanin::ort
]])
