#include "cli/engine_load.hpp"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "engine/package/package.hpp"
#include "engine/runtime/agreement.hpp"

namespace accord::cli {

Result<GroupChoice> choose_group(const std::string& package, const std::string& wanted, const Communicator& comm) {
  if (!wanted.empty()) return GroupChoice{wanted, "", 0};
  if (comm.size() == 1) return GroupChoice{};
  const Result<engine::Package> opened = engine::Package::open(package);
  if (!opened.ok()) return GroupChoice{"tp", "", 0};
  const std::vector<std::string>& groups = opened->manifest().groups;
  GroupChoice choice{{}, opened->manifest().sha256, opened->metadata_bytes_read()};
  if (groups.empty()) return choice;
  if (groups.size() == 1) {
    choice.name = groups.front();
    return choice;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} has {} groups; say by --group which one the ranks form", package, groups.size()));
}

Result<Engine> load_on_ranks(const std::string& package, const Communicator& comm, const GroupChoice& group,
                             int threads) {
  std::map<std::string, Communicator> groups;
  if (group.name) groups.emplace(*group.name, comm);
  Result<Engine> engine = Engine::load_and_bind(package, groups, {.threads = threads});
  if (!group.name && comm.size() > 1) {
    ACCORD_RETURN_IF_ERROR(engine::agree({{"all ranks", comm}}, {engine.status(), group.identity}));
  }
  return engine;
}

}  // namespace accord::cli
