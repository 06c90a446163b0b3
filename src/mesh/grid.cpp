#include "mesh/grid.hpp"

#include <algorithm>

namespace accord::mesh {

Grid::Grid(std::vector<MeshAxis> axes, Rank first_rank) : axes_(std::move(axes)), first_rank_(first_rank) {
  for (const MeshAxis& axis : axes_) {
    strides_.push_back(size_);
    size_ *= axis.size;
  }
}

std::optional<std::size_t> Grid::find(std::string_view axis) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const MeshAxis& one) { return one.name == axis; });
  if (found == axes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - axes_.begin());
}

Line::Line(const Grid& grid, std::span<const std::size_t> axes) : first_rank_(grid.first_rank()) {
  for (const std::size_t axis : axes) {
    along_.push_back(grid.digit(axis));
    size_ *= along_.back().size;
  }
  for (std::size_t axis = 0; axis < grid.axes().size(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) others_.push_back(grid.digit(axis));
  }
}

Rank Line::base(Rank rank) const {
  std::int64_t first = rank - first_rank_;
  for (const Digit& digit : along_) first -= first / digit.stride % digit.size * digit.stride;
  return static_cast<Rank>(first) + first_rank_;
}

std::int64_t Line::position(Rank rank) const {
  std::int64_t position = 0, stride = 1;
  for (const Digit& digit : along_) {
    position += (rank - first_rank_) / digit.stride % digit.size * stride;
    stride *= digit.size;
  }
  return position;
}

Rank Line::at(std::int64_t position, Rank rank) const {
  std::int64_t found = base(rank);
  for (const Digit& digit : along_) {
    found += position % digit.size * digit.stride;
    position /= digit.size;
  }
  return static_cast<Rank>(found);
}

std::vector<Rank> Line::firsts() const {
  std::vector<Rank> firsts = {first_rank_};
  for (const Digit& digit : others_) {
    const std::size_t before = firsts.size();
    for (std::int64_t i = 1; i < digit.size; ++i) {
      for (std::size_t j = 0; j < before; ++j) firsts.push_back(static_cast<Rank>(firsts[j] + i * digit.stride));
    }
  }
  return firsts;
}

}  // namespace accord::mesh
