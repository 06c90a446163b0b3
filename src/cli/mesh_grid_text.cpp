#include "cli/mesh_grid_text.hpp"

#include <fmt/format.h>

namespace accord::cli {

std::string mesh_grid_text(std::span<const MeshAxis> axes) {
  std::string text;
  for (const MeshAxis& axis : axes) {
    if (axis.size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis.name, axis.size);
  }
  return text.empty() ? "1 rank" : text;
}

}  // namespace accord::cli
