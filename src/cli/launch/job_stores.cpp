// PyTorch's ranks look for their store at MASTER_PORT, and host it there themselves unless
// TORCHELASTIC_USE_AGENT_STORE says that the launcher does. TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the launcher's
// environment leaves hosting to rank 0, as with torchrun. accord's ranks look at the ports after it, and
// ACCORD_JOB_STORE tells rank 0 that the launcher hosts their store.
#include "cli/launch/job_stores.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "cli/launch/rank_environment.hpp"
#include "comm/internal.hpp"
#include "store/tcp_socket.hpp"

namespace accord::cli {
namespace {

constexpr Duration kHostTakes = std::chrono::seconds(10);

bool rank_0_hosts() {
  const char* const disabled = std::getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  return disabled != nullptr && std::string_view(disabled) == "1";
}

Result<UniqueFd> listen_for(const Job& job) {
  Result<UniqueFd> listening = store::listen_at(job.master_host, job.master_port);
  if (listening.ok()) return listening;
  const std::string port = job.master_port == 0 ? "" : fmt::format(", --master-port {}", job.master_port);
  return listening.status().with_context(
      fmt::format("the store of the ranks cannot be hosted at --master-addr {}{}", job.master_host, port));
}

}  // namespace

Result<JobStores> JobStores::host(const Job& job, Start& start) {
  JobStores stores;
  ACCORD_ASSIGN_OR_RETURN(UniqueFd listening, listen_for(job));
  ACCORD_ASSIGN_OR_RETURN(start.master_port, store::port_of(listening.get()));
  start.hosts_torch_store = job.elastic || !rank_0_hosts();  // an elastic job may lose rank 0
  if (start.hosts_torch_store) {
    ACCORD_ASSIGN_OR_RETURN(stores.torch_, TorchStore::serve(std::move(listening)));
  }
  const Result<comm::JobPlace> place = comm::job_place(rank_variables(job, start, 0));
  if (place.ok() && place->port != 0) {
    ACCORD_ASSIGN_OR_RETURN(stores.accord_, comm::host_store(*place, Deadline::in(kHostTakes)));
    start.job_store = place->job;
  }
  return stores;
}

void JobStores::add_watches(Watches& watches) {
  if (torch_ != nullptr) torch_->add_watches(watches);
}

}  // namespace accord::cli
