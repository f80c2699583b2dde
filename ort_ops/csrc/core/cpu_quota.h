// How many CPUs a Linux control group lets this process use.
#pragma once

#include <optional>
#include <string>

namespace fanin {

// The CPUs worth of time that the scheduler grants this process's control group and those around
// it: what containers and Kubernetes limit. None where nothing is limited. Reads below `root`,
// which is "" but in tests; what cannot be read or understood does not limit.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace fanin
