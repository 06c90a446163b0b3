// Options of a mesh's groups where there are GPUs.
#include <gmock/gmock.h>

#include <cstdlib>

#include "accord/mesh.hpp"
#include "conformance/comm/host_devices.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::OnDevice;
using ::testing::UnorderedElementsAre;

// Set before anything reads the environment.
const bool kChosen = setenv("ACCORD_NCCL", testing::library_path().c_str(), 1) == 0;

class DeviceMeshes : public testing::HostDevices {};

TEST_F(DeviceMeshes, group_options_reach_nccl_and_are_reported) {
  ASSERT_TRUE(kChosen);
  MeshConfig config{.world_size = 4, .tp = 2};
  config.options["tp"] = {
      .is_high_priority_stream = true, .cga_cluster_size = 2, .max_ctas = 16, .min_ctas = 4, .net_name = "IB"};
  const MeshPlan plan = *MeshPlan::create(config);
  on_ranks(4, [&](Communicator& comm, const OnDevice& on) {
    Result<Mesh> mesh = Mesh::create(plan, comm, {.strict = true});
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    std::vector<std::string> reported;
    for (const MeshOptionReport& report : mesh->report())
      reported.push_back(report.option + " " + std::string(to_string(report.fate)));
    EXPECT_THAT(reported, UnorderedElementsAre("is_high_priority_stream applied", "cga_cluster_size applied",
                                               "max_ctas applied", "min_ctas applied", "net_name applied"));
    const DeviceArray ones(on, std::vector<float>(8, 1.0F), DType::kFloat32);
    for (const char* const family : {"tp", "dp"}) {
      Communicator group = **mesh->group(family);
      ASSERT_TRUE(group.all_reduce(ones.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
    }
    EXPECT_EQ(ones.values<float>(), std::vector<float>(8, 4.0F));
    mesh->close();
  });
  EXPECT_THAT(testing::log_of(0),
              Contains(HasSubstr("nranks=2 blocking=1 cgaClusterSize=2 minCTAs=4 maxCTAs=16 netName=IB")));
}

}  // namespace
}  // namespace accord
