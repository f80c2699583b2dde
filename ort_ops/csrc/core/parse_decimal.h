// Decimal numbers by C's rules in every locale. std::from_chars reads them only since GCC 11.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace fanin {

// The value of a whole text such as "-1", "0.25" or "1e-05", exact to a few units in the last
// place; none if it is anything else.
inline std::optional<double> parse_decimal(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  double digits = 0;
  int exponent = 0, count = 0;
  bool point = false;
  for (; !text.empty(); text.remove_prefix(1)) {
    const char c = text.front();
    if (c == '.' && !point) {
      point = true;
    } else if (c >= '0' && c <= '9') {
      digits = digits * 10 + (c - '0');
      ++count;
      exponent -= point;
    } else {
      break;
    }
  }
  if (count == 0) return std::nullopt;
  if (!text.empty()) {
    if (text.front() != 'e' && text.front() != 'E') return std::nullopt;
    text.remove_prefix(1);
    if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
    int power = 0;
    const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), power);
    if (problem != std::errc() || stop != text.data() + text.size()) return std::nullopt;
    if (power < -999 || power > 999) return std::nullopt;
    exponent += power;
  }
  const double value =
      exponent < 0 ? digits / std::pow(10.0, -exponent) : digits * std::pow(10.0, exponent);
  if (!std::isfinite(value)) return std::nullopt;
  return negative ? -value : value;
}

}  // namespace fanin
