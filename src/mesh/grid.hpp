#pragma once
// Ranks in mixed radix: the first axis has the smallest stride.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "accord/mesh.hpp"

namespace accord::mesh {

/// One axis in a grid.
struct Digit {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

class Grid {
 public:
  Grid(std::vector<MeshAxis> axes, Rank first_rank);

  std::span<const MeshAxis> axes() const { return axes_; }
  Rank first_rank() const { return first_rank_; }
  std::int64_t size() const { return size_; }
  /// Index of an axis; nullopt if no axis has that name.
  std::optional<std::size_t> find(std::string_view axis) const;
  Digit digit(std::size_t axis) const { return {axes_[axis].size, strides_[axis]}; }
  std::int64_t coordinate(std::size_t axis, Rank rank) const {
    return (rank - first_rank_) / strides_[axis] % axes_[axis].size;
  }

 private:
  std::vector<MeshAxis> axes_;
  std::vector<std::int64_t> strides_;
  std::int64_t size_ = 1;
  Rank first_rank_ = 0;
};

/// Lists of ranks that differ along some axes only, indexed by position.
class Line {
 public:
  /// `axes` of `grid`, the one with adjacent positions first.
  Line(const Grid& grid, std::span<const std::size_t> axes);

  std::int64_t size() const { return size_; }
  /// The position of `rank` in its list.
  std::int64_t position(Rank rank) const;
  /// The rank at a position of the list that contains `rank`.
  Rank at(std::int64_t position, Rank rank) const;
  /// The first rank of each list, in the order of the other axes.
  std::vector<Rank> firsts() const;

 private:
  Rank base(Rank rank) const;

  Rank first_rank_ = 0;
  std::vector<Digit> along_;
  std::vector<Digit> others_;
  std::int64_t size_ = 1;
};

}  // namespace accord::mesh
