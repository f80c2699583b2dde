#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace fanin {
namespace {

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// quota / period, both in microseconds; none for "max", -1 and anything that is not a number.
std::optional<double> share(const std::string& quota, const std::string& period) {
  std::istringstream quota_text(quota), period_text(period);
  double quota_time = 0, period_time = 0;
  if (!(quota_text >> quota_time) || !(period_text >> period_time)) return std::nullopt;
  if (quota_time <= 0 || period_time <= 0) return std::nullopt;
  return quota_time / period_time;
}

// cpu.max of version 2: "200000 100000" or "max 100000".
std::optional<double> share_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota, period;
  file >> quota >> period;
  return share(quota, period);
}

std::optional<double> share_v1(const std::string& folder) {
  return share(first_word(folder + "/cpu.cfs_quota_us"), first_word(folder + "/cpu.cfs_period_us"));
}

bool lists(const std::string& controllers, const std::string& name) {
  std::istringstream text(controllers);
  for (std::string word; std::getline(text, word, ',');)
    if (word == name) return true;
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  // "0::/user.slice/..." of version 2, "4:cpu,cpuacct:/docker/..." of version 1.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && !lists(controllers, "cpu")) continue;
    // Parent groups limit a group too. In a container the path may be the host's, of which only the
    // root of the mount is visible.
    std::string path = line.substr(second + 1);
    for (;; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const auto found = is_v2 ? share_v2(mount + path) : share_v1(mount + "/cpu" + path);
      if (found) least = std::min(least.value_or(*found), *found);
      if (path.empty() || path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace fanin
