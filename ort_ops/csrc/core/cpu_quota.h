// How many CPUs a Linux control group lets this process use.
#pragma once

#include <optional>
#include <string>

namespace fanin {

// The CPU quota of this process's control group and its parents, in CPUs: CPU limits of containers
// and Kubernetes set it. None if there is no limit. Reads files below `root`, which is "" except in
// tests; files that cannot be read or parsed set no limit.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace fanin
