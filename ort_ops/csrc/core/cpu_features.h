// The instruction sets that this CPU and its operating system support, and the one to use.
#pragma once

#include <string>
#include <vector>

namespace fanin {

// In ascending order of preference. Each includes those of its architecture before it, except that
// AVX-512 does not include AVX-VNNI.
enum class Isa {
  kScalar,
  kAvx2,
  kAvxvnni,
  kAvx512f,
  kAvx512bw,
  kAvx512vnni,
  kAvx512vbmi,  // with VNNI: of the CPUs with VBMI, only Cannon Lake lacks it
  kAvx512bf16,  // with VBMI: of the CPUs with BF16, only Cooper Lake lacks it
  kNeon,
  kDotprod  // NEON with dot products of bytes
};

const char* isa_name(Isa isa);

// Whether a CPU that is used as `isa` may run kernels of `part`.
bool includes(Isa isa, Isa part);

// Every ISA that this CPU can run, kScalar first.
std::vector<Isa> supported_isas();

bool is_supported(Isa isa);

// Whether AVX-512 panels broadcast weights from memory instead of by permutes: on Intel CPUs with
// AVX-512 FP16 (Sapphire Rapids and later), of which one was measured. Slower on Cascade Lake and
// Zen 4; not measured elsewhere.
bool broadcasts_from_memory();

// CPUs of one instruction set whose fastest kernels differ. Chosen by measurement: kZen4 is AMD's
// family 25, of which only Zen 4 has AVX-512.
enum class CpuKind { kOther, kZen4 };

CpuKind cpu_kind_of(bool amd, unsigned family);

// Of this CPU.
CpuKind cpu_kind();

// FANIN_ISA if set, otherwise the best ISA of the CPU. Reads the environment at each call. Throws
// std::invalid_argument if the name is unknown or the CPU lacks it.
Isa select_isa();

// The ISA of that name; "auto" is select_isa(). Throws std::invalid_argument in the same cases.
Isa parse_isa(const std::string& name);

}  // namespace fanin
