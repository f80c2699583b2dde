// Which instruction sets this CPU and its operating system offer, and which one to use.
#pragma once

#include <string>
#include <vector>

namespace fanin {

// In the order of preference: a later one is taken when the CPU has it, and includes those of its
// architecture before it.
enum class Isa { kScalar, kAvx2, kAvx512f, kAvx512bw, kAvx512vbmi, kNeon };

const char* isa_name(Isa isa);

// Every ISA that runs here, kScalar first.
std::vector<Isa> supported_isas();

bool is_supported(Isa isa);

// The ISA that FANIN_ISA asks for, else the best that the CPU has. Reads the environment at each
// call. Throws std::invalid_argument for a name that is unknown or that this CPU lacks.
Isa select_isa();

// The ISA of that name; "auto" is select_isa(). Throws std::invalid_argument likewise.
Isa parse_isa(const std::string& name);

}  // namespace fanin
