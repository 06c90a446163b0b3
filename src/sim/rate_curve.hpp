#pragma once
// A rate that depends on a size.

#include <vector>

namespace accord::sim {

/// Bytes per second by size. Between two known sizes the seconds of a byte change with the logarithm of the size;
/// beyond them they are those of the nearest. A curve without points stands for something that takes no time.
class RateCurve {
 public:
  struct Point {
    double bytes = 0;
    double bytes_per_second = 0;
    bool operator==(const Point&) const = default;
  };

  RateCurve() = default;
  explicit RateCurve(double bytes_per_second) : points_{{0, bytes_per_second}} {}
  /// REQUIRES: sizes that grow; rates above 0.
  explicit RateCurve(std::vector<Point> points) : points_(std::move(points)) {}

  double seconds_per_byte(double bytes) const;
  /// The same for a step of that many bytes: one that is smaller than the first size takes as long as that one.
  double seconds_per_byte_of_step(double bytes) const;
  const std::vector<Point>& points() const { return points_; }
  bool depends_on_size() const { return points_.size() > 1; }

 private:
  std::vector<Point> points_;
};

}  // namespace accord::sim
