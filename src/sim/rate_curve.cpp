#include "sim/rate_curve.hpp"

#include <algorithm>
#include <cmath>

namespace accord::sim {

double RateCurve::seconds_per_byte(double bytes) const {
  if (points_.empty()) return 0;
  const auto above = std::find_if(points_.begin(), points_.end(), [&](const Point& one) { return one.bytes > bytes; });
  if (above == points_.begin()) return 1 / above->bytes_per_second;
  const Point& below = *std::prev(above);
  if (above == points_.end()) return 1 / below.bytes_per_second;
  // A size of 0 has no logarithm; below one byte nothing changes.
  const double from = std::log(std::max(below.bytes, 1.0));
  const double part = (std::log(std::max(bytes, 1.0)) - from) / (std::log(std::max(above->bytes, 2.0)) - from);
  return (1 - part) / below.bytes_per_second + part / above->bytes_per_second;
}

double RateCurve::seconds_per_byte_of_step(double bytes) const {
  const double least = points_.empty() ? 0 : points_.front().bytes;
  return seconds_per_byte(bytes) * (bytes > 0 && bytes < least ? least / bytes : 1);
}

}  // namespace accord::sim
