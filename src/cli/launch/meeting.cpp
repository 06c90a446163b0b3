// A launcher that was given its node rank knows its role: 0 serves, the others connect. Without one, a launcher tries
// to connect, and serves if nobody answers and the endpoint is an address of this machine. If another launcher was
// faster, the port is taken, and the next attempt connects to it.
#include "cli/launch/meeting.hpp"

#include <fmt/format.h>
#include <poll.h>

#include "store/tcp_socket.hpp"

namespace accord::cli {

Result<Met> meet(const Job& job, Deadline deadline, const std::function<bool()>& should_stop) {
  const auto serve = [&]() -> Result<Met> {
    ACCORD_ASSIGN_OR_RETURN(UniqueFd listening, store::listen_at(job.endpoint_host, job.endpoint_port));
    return Met(Served{std::move(listening)});
  };
  if (job.node == 0) return serve();

  const std::string url = store::tcp_url(job.endpoint_host, job.endpoint_port);
  Status last;
  while (!deadline.passed()) {
    if (should_stop())
      return Status(StatusCode::kAborted, url + ": interrupted while waiting for the launcher of node 0");
    const Result<std::vector<store::Address>> addresses = store::resolve(job.endpoint_host, job.endpoint_port);
    last = addresses.status();
    if (last.code() == StatusCode::kNotFound) return last.with_context("--rdzv-endpoint");
    if (addresses.ok()) {
      bool here = false;
      for (const store::Address& address : *addresses) {
        Result<UniqueFd> fd = store::connect_to(address, Deadline::in(std::chrono::seconds(2)), url);
        if (fd.ok()) return Met(Link(*std::move(fd)));
        last = fd.status();
        here = here || store::is_here(address);
      }
      if (!job.node.has_value() && here) {
        Result<Met> served = serve();
        if (served.ok()) return served;
        last = served.status();
      }
    }
    poll(nullptr, 0, 100);
  }
  return Status(
      StatusCode::kTimeout,
      fmt::format("the launcher of node 0 did not answer at {} within {} s; last error: {}", url,
                  std::chrono::duration_cast<std::chrono::seconds>(job.meeting_timeout).count(), last.message()));
}

}  // namespace accord::cli
