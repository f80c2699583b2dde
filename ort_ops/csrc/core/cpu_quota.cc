#include "core/cpu_quota.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "core/parse_decimal.h"

namespace fanin {
namespace {

// Without streams, whose locales have crashed in processes with another libstdc++. Empty if there
// is no such file.
std::string content(const std::string& path) {
  std::string text;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "r"), std::fclose);
  char part[4096];
  while (file) {
    const size_t count = std::fread(part, 1, sizeof part, file.get());
    if (count == 0) break;
    text.append(part, count);
  }
  return text;
}

// The parts of a text between separators.
std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

// quota / period, both in microseconds; none for "max", -1 and anything that is not a number.
std::optional<double> share(const std::vector<std::string>& times) {
  if (times.size() < 2) return std::nullopt;
  const std::optional<double> quota = parse_decimal(times[0]), period = parse_decimal(times[1]);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// cpu.max of version 2: "200000 100000" or "max 100000".
std::optional<double> share_v2(const std::string& folder) {
  return share(split(content(folder + "/cpu.max"), " \n"));
}

std::optional<double> share_v1(const std::string& folder) {
  return share(
      split(content(folder + "/cpu.cfs_quota_us") + "\n" + content(folder + "/cpu.cfs_period_us"),
            " \n"));
}

bool lists(const std::string& controllers, const std::string& name) {
  const std::vector<std::string> words = split(controllers, ",");
  return std::find(words.begin(), words.end(), name) != words.end();
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  const std::string mount = root + "/sys/fs/cgroup";
  // "0::/user.slice/..." of version 2, "4:cpu,cpuacct:/docker/..." of version 1.
  for (const std::string& line : split(content(root + "/proc/self/cgroup"), "\n")) {
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
