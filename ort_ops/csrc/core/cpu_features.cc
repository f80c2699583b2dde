#include "core/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fanin {
namespace {

constexpr Isa kAll[] = {Isa::kScalar,   Isa::kAvx2,       Isa::kAvxvnni,    Isa::kAvx512f,
                        Isa::kAvx512bw, Isa::kAvx512vnni, Isa::kAvx512vbmi, Isa::kAvx512bf16,
                        Isa::kNeon,     Isa::kDotprod};

#if defined(__x86_64__)
// Compilers older than GCC 11 do not know its name.
bool has_avx_vnni() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}
#elif defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}
#endif

// __builtin_cpu_supports queries cpuid and, for the AVX families, xgetbv: if the operating system
// does not save the wide registers, they count as missing.
bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512f = avx2 && __builtin_cpu_supports("avx512f");
  const bool avx512bw = avx512f && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx512vnni = avx512bw && __builtin_cpu_supports("avx512vnni");
  const bool avx512vbmi = avx512vnni && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvxvnni:
      return avx2 && has_avx_vnni();
    case Isa::kAvx512f:
      return avx512f;
    case Isa::kAvx512bw:
      return avx512bw;
    case Isa::kAvx512vnni:
      return avx512vnni;
    case Isa::kAvx512vbmi:
      return avx512vbmi;
    case Isa::kAvx512bf16:
      return avx512vbmi && __builtin_cpu_supports("avx512bf16");
    case Isa::kNeon:
    case Isa::kDotprod:
      return false;
  }
  return false;
#elif defined(__aarch64__)
  // Vectors of 128 bits, with conversions of float16, are part of every such CPU.
  if (isa == Isa::kDotprod) return has_dot_products();
  return isa == Isa::kScalar || isa == Isa::kNeon;
#else
  return isa == Isa::kScalar;
#endif
}

std::string joined(const std::vector<Isa>& isas) {
  std::string names;
  for (Isa isa : isas) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  return names;
}

// `source` is where the name came from, for the error message.
Isa find(const std::string& name, const std::string& source) {
  const std::vector<Isa> supported = supported_isas();
  for (Isa isa : supported)
    if (name == isa_name(isa)) return isa;
  std::string known = "auto";
  for (Isa isa : kAll) {
    if (name == isa_name(isa))
      throw std::invalid_argument(source + " '" + name +
                                  "' is not supported by this CPU, which has " + joined(supported));
    known += std::string(", ") + isa_name(isa);
  }
  throw std::invalid_argument(source + " '" + name + "' is unknown; it must be one of " + known +
                              ", and this CPU supports " + joined(supported));
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxvnni:
      return "avxvnni";
    case Isa::kAvx512f:
      return "avx512f";
    case Isa::kAvx512bw:
      return "avx512bw";
    case Isa::kAvx512vnni:
      return "avx512vnni";
    case Isa::kAvx512vbmi:
      return "avx512vbmi";
    case Isa::kAvx512bf16:
      return "avx512bf16";
    case Isa::kNeon:
      return "neon";
    case Isa::kDotprod:
      return "dotprod";
  }
  return "unknown";
}

bool includes(Isa isa, Isa part) { return part == isa || (part < isa && part != Isa::kAvxvnni); }

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : kAll)
    if (cpu_has(isa)) isas.push_back(isa);
  return isas;
}

bool is_supported(Isa isa) { return cpu_has(isa); }

bool broadcasts_from_memory() {
#if defined(__x86_64__)
  // GCC 11's __builtin_cpu_supports does not know avx512fp16.
  constexpr unsigned kLeaf = 7, kAvx512fp16 = 1u << 23;
  unsigned a, b, c, d;
  return __builtin_cpu_is("intel") && __get_cpuid_count(kLeaf, 0, &a, &b, &c, &d) &&
         (d & kAvx512fp16) != 0;
#else
  return false;
#endif
}

CpuKind cpu_kind_of(bool amd, unsigned family) {
  constexpr unsigned kZen3And4 = 25;
  return amd && family == kZen3And4 ? CpuKind::kZen4 : CpuKind::kOther;
}

CpuKind cpu_kind() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return CpuKind::kOther;
  const unsigned base = a >> 8 & 0xf, extended = a >> 20 & 0xff;
  return cpu_kind_of(__builtin_cpu_is("amd"), base == 0xf ? base + extended : base);
#else
  return CpuKind::kOther;
#endif
}

Isa select_isa() {
  const char* asked = std::getenv("FANIN_ISA");
  if (!asked || !*asked || std::string(asked) == "auto") return supported_isas().back();
  return find(asked, "FANIN_ISA");
}

Isa parse_isa(const std::string& name) { return name == "auto" ? select_isa() : find(name, "ISA"); }

}  // namespace fanin
