#pragma once
// The store of torch.distributed that the launcher hosts.

#include <map>
#include <memory>
#include <string>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "cli/launch/torch_store_table.hpp"
#include "cli/launch/watch.hpp"

namespace accord::cli {

/// Serves PyTorch's TCPStore from the launcher's loop until it is destroyed, which ends all connections. Not
/// thread-safe.
class TorchStore {
 public:
  static Result<std::unique_ptr<TorchStore>> serve(UniqueFd listening);

  void add_watches(Watches& watches);

 private:
  using Client = TorchStoreTable::Client;
  struct Connection {
    UniqueFd fd;
    std::string unsent;
  };

  TorchStore(UniqueFd listening, UniqueFd epoll) : listening_(std::move(listening)), epoll_(std::move(epoll)) {}
  void turn();
  void accept_clients();
  bool receive(Client client, Connection& connection);
  bool flush(Client client, Connection& connection);
  void answer();
  void drop(Client client);

  UniqueFd listening_;
  UniqueFd epoll_;  ///< of the listening socket, number 0, and all connections
  Client next_ = 1;
  std::map<Client, Connection> connections_;
  TorchStoreTable table_;
};

}  // namespace accord::cli
