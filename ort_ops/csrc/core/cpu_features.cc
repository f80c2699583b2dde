#include "core/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>

namespace fanin {
namespace {

constexpr Isa kAll[] = {Isa::kScalar,   Isa::kAvx2,       Isa::kAvxvnni,    Isa::kAvx512f,
                        Isa::kAvx512bw, Isa::kAvx512vnni, Isa::kAvx512vbmi, Isa::kAvx512bf16,
                        Isa::kNeon,     Isa::kDotprod};

#if defined(__x86_64__)
// Asked of the CPU itself: __builtin_cpu_supports says no to everything under some compilers'
// runtimes (zig's), and older ones lack names. Registers and bits are those of Intel's manual,
// volume 2A, CPUID, and volume 1, 13.3.
struct X86Features {
  bool avx2 = false, avx_vnni = false, avx512f = false, avx512bw = false, avx512vnni = false,
       avx512vbmi = false, avx512bf16 = false;

  X86Features() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const unsigned basic = c;
    if (!has(basic, {12, 27, 28, 29})) return;  // FMA, OSXSAVE, AVX, F16C
    unsigned saved = 0;                         // registers that the operating system saves
    __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if (!has(saved, {1, 2}) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    const unsigned extended = b, more = c;
    unsigned last = 0;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) last = a;
    avx2 = has(extended, {5});
    avx_vnni = avx2 && has(last, {4});
    avx512f = avx2 && has(extended, {16}) && has(saved, {5, 6, 7});
    avx512bw = avx512f && has(extended, {17, 30, 31});  // DQ, BW, VL
    avx512vnni = avx512bw && has(more, {11});
    avx512vbmi = avx512vnni && has(more, {1});
    avx512bf16 = avx512vbmi && has(last, {5});
  }

  static bool has(unsigned word, std::initializer_list<int> bits) {
    for (const int bit : bits)
      if ((word >> bit & 1) == 0) return false;
    return true;
  }
};
// The vendor's twelve letters are in EBX, EDX and ECX.
bool made_by(const char* vendor) {
  unsigned a = 0, name[3] = {};
  return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) && std::memcmp(name, vendor, 12) == 0;
}
#elif defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  int has = 0;
  size_t bytes = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
#endif

bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  static const X86Features cpu;
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return cpu.avx2;
    case Isa::kAvxvnni:
      return cpu.avx_vnni;
    case Isa::kAvx512f:
      return cpu.avx512f;
    case Isa::kAvx512bw:
      return cpu.avx512bw;
    case Isa::kAvx512vnni:
      return cpu.avx512vnni;
    case Isa::kAvx512vbmi:
      return cpu.avx512vbmi;
    case Isa::kAvx512bf16:
      return cpu.avx512bf16;
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
  constexpr unsigned kLeaf = 7, kAvx512fp16 = 1u << 23;
  unsigned a, b, c, d;
  return made_by("GenuineIntel") && __get_cpuid_count(kLeaf, 0, &a, &b, &c, &d) &&
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
  return cpu_kind_of(made_by("AuthenticAMD"), base == 0xf ? base + extended : base);
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
