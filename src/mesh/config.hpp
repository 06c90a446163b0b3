#pragma once
// What a mesh may be.

#include <map>
#include <string>
#include <vector>

#include "accord/mesh.hpp"

namespace accord::mesh {

inline constexpr int kMostRanks = 1 << 20;

/// kInvalidArgument: "mesh: `why`".
Status invalid(const std::string& why);

/// With everything that was left out. kInvalidArgument: which number cannot be, and why.
Result<MeshConfig> resolved(MeshConfig config);

/// The axes of the two grids in the order that the config gives them. REQUIRES: a resolved config.
std::vector<MeshAxis> dense_axes(const MeshConfig& config);
std::vector<MeshAxis> expert_axes(const MeshConfig& config);
/// Data-parallel ranks of experts.
int expert_dp(const MeshConfig& config);

/// "world_size=16 rank_offset=0 tp=2 ...": all that decides the groups.
std::string text_of(const MeshConfig& config);
/// Those that are asked for, by name.
std::map<std::string, std::string> settings_of(const MeshGroupOptions& options);

}  // namespace accord::mesh
