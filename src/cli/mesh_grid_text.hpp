#pragma once
// The grid of a mesh in words.

#include <span>
#include <string>

#include "accord/mesh.hpp"

namespace accord::cli {

/// Formats the axes of more than one rank: "tp 2 x dp 4"; "1 rank" if there are none.
std::string mesh_grid_text(std::span<const MeshAxis> axes);

}  // namespace accord::cli
