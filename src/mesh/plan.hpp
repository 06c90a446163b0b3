#pragma once
// The contents of a MeshPlan.

#include <map>
#include <string>
#include <vector>

#include "accord/mesh.hpp"
#include "mesh/families.hpp"
#include "mesh/grid.hpp"

namespace accord::mesh {

class Plan {
 public:
  Plan(Grid dense, Grid experts, std::vector<Family> families, std::map<std::string, MeshGroupOptions> options,
       std::string text);

  const Grid& dense() const { return dense_; }
  const Grid& experts() const { return experts_; }
  const std::vector<Family>& families() const { return families_; }
  const std::vector<MeshFamily>& facts() const { return facts_; }
  const std::string& text() const { return text_; }
  const std::map<std::string, MeshGroupOptions>& options() const { return options_; }
  const MeshGroupOptions& options_of(const Family& family) const;

 private:
  Grid dense_, experts_;
  std::vector<Family> families_;
  std::vector<MeshFamily> facts_;
  std::map<std::string, MeshGroupOptions> options_;
  std::string text_;
};

}  // namespace accord::mesh
