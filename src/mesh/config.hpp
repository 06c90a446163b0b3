#pragma once
// Validation of mesh configurations.

#include <map>
#include <string>
#include <vector>

#include "accord/mesh.hpp"

namespace accord::mesh {

inline constexpr int kMaxRanks = 1 << 20;

/// Returns kInvalidArgument: "mesh: `why`".
Status invalid(const std::string& why);

/// Fills in everything that was left out. kInvalidArgument says which number is invalid, and why.
Result<MeshConfig> resolved(MeshConfig config);

/// The axes of the two grids in the config's order. REQUIRES: a resolved config.
std::vector<MeshAxis> dense_axes(const MeshConfig& config);
std::vector<MeshAxis> expert_axes(const MeshConfig& config);
/// Data-parallel size of the experts.
int expert_dp(const MeshConfig& config);

/// "world_size=16 rank_offset=0 tp=2 ...": everything that determines the groups.
std::string text_of(const MeshConfig& config);
/// The options that are set, by name.
std::map<std::string, std::string> settings_of(const MeshGroupOptions& options);

}  // namespace accord::mesh
