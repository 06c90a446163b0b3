// Each rank first creates its private resources, including those on its GPU. Then the ranks meet, so that an error of
// one rank is reported on all, compare their configurations, and share memory.
#include "expert/config.hpp"
#include "expert/dispatchers.hpp"
#include "expert/group.hpp"
#include "expert/rendezvous.hpp"

namespace accord::expert {

Result<std::shared_ptr<Group>> Group::create(Communicator& borrowed, Result<ExpertGroupConfig> config) {
  Result<Resolved> resolved =
      config.ok() ? resolve(*std::move(config), borrowed.size()) : Result<Resolved>(config.status());
  Result<std::optional<Communicator>> split = borrowed.split(0, borrowed.rank(), borrowed.name() + ".experts");
  if (!split.ok()) return split.status().with_context("expert group");
  Communicator own = **split;
  std::shared_ptr<const GroupSetup> setup;
  std::unique_ptr<TokenDispatcher> dispatcher;
  Status ready = resolved.status();
  if (ready.ok()) {
    setup = std::make_shared<const GroupSetup>(GroupSetup{
        own, std::move(resolved->config), std::make_shared<const Placement>(std::move(resolved->placement))});
    Result<std::unique_ptr<TokenDispatcher>> created = create_dispatcher(setup);
    ready = created.status();
    if (created.ok()) dispatcher = *std::move(created);
  }
  ACCORD_RETURN_IF_ERROR(Rendezvous(own).meet({}, ready));
  ACCORD_RETURN_IF_ERROR(agree(own, *setup).with_context("expert group"));
  ACCORD_RETURN_IF_ERROR(dispatcher->connect().with_context("expert group"));
  return std::shared_ptr<Group>(new Group(std::move(setup), std::move(dispatcher)));
}

}  // namespace accord::expert
