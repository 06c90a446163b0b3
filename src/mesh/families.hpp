#pragma once
// The families of groups of a mesh, as data: the axes of the grid that they run along, and how groups are cut from
// them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accord/mesh.hpp"
#include "mesh/grid.hpp"

namespace accord::mesh {

/// The part of a line that forms one group.
struct Cut {
  enum class Kind : std::uint8_t {
    kWhole,
    kLevel,     ///< `size` positions that are `stride` apart
    kPositions  ///< the listed positions; a line has one such group
  };
  Kind kind = Kind::kWhole;
  std::int64_t size = 0;
  std::int64_t stride = 1;
  std::vector<std::int64_t> positions = {};  ///< ascending
};

/// Groups of one kind.
struct Family {
  MeshFamily facts;
  Line line;
  Cut cut;
  bool shares = true;  ///< shares its groups with other families of equal ranks and options

  std::vector<Rank> ranks_of(Rank rank) const;
  std::vector<std::vector<Rank>> all_groups() const;
};

/// Names and numbers as in Megatron. REQUIRES: a resolved config.
std::vector<Family> families_of(const MeshConfig& config, const Grid& dense, const Grid& experts);
/// The family along some axes of a grid. REQUIRES: the grid has them.
Family family_along(const Grid& grid, const std::vector<std::string>& axes);
/// The sizes of hybrid groups among `neighbours` ranks.
std::vector<int> hybrid_sizes(std::int64_t neighbours);
/// The keys for which options may be given.
std::vector<std::string_view> option_keys();

}  // namespace accord::mesh
