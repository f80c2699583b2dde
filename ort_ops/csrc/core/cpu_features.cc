#include "core/cpu_features.h"

#include <cstdlib>
#include <stdexcept>

namespace fanin {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512f: return "avx512f";
    case Isa::kAvx512bw: return "avx512bw";
    case Isa::kAvx512vbmi: return "avx512vbmi";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() { return {Isa::kScalar}; }

Isa select_isa() {
  const char* asked = std::getenv("FANIN_ISA");
  return asked && *asked ? parse_isa(asked) : supported_isas().back();
}

Isa parse_isa(const std::string& name) {
  if (name == "auto") return select_isa();
  for (Isa isa : supported_isas())
    if (name == isa_name(isa)) return isa;
  throw std::invalid_argument("ISA '" + name + "' is unknown or this CPU lacks it");
}

}  // namespace fanin
