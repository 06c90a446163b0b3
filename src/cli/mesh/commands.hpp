#pragma once
// The subcommands of `accord mesh`, and what they share.

#include <CLI/CLI.hpp>
#include <string>

#include "accord/mesh.hpp"
#include "cli/commands.hpp"

namespace accord::cli {

void add_mesh_show(CLI::App& mesh, Action& chosen);

/// Formats a list of ranks: "0-7", "0-120 by 8", "0, 3, 5 and 6 more".
std::string mesh_ranks_text(const std::vector<Rank>& ranks);

/// Returns an SVG document: all ranks as squares, with tensor-parallel neighbours side by side and a block for each
/// stage of the pipeline, in the colors of their groups of `family`. The ranks of the group that contains `rank` are
/// outlined.
std::string mesh_chart(const MeshPlan& plan, int family, Rank rank);

}  // namespace accord::cli
