#pragma once
// What an Engine handle holds: one rank's graph and weights, its state, and its communicators.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/runtime/parameters.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/states.hpp"

namespace accord::engine {

/// Thread-safe. Graph, weights and report never change after load(); the communicators not after bind().
class LoadedEngine {
 public:
  static Result<std::shared_ptr<LoadedEngine>> load(const std::string& path,
                                                    const std::map<std::string, GroupPlace>& places,
                                                    const LoadOptions& options);
  static Result<std::shared_ptr<LoadedEngine>> load_and_bind(const std::string& path,
                                                             const std::map<std::string, Communicator>& communicators,
                                                             const LoadOptions& options);

  Status bind(const std::map<std::string, Communicator>& communicators);
  EngineState state() const;
  void close();

  const LoadReport& report() const { return report_; }
  const std::vector<TensorInfo>& inputs() const { return inputs_; }
  const std::vector<TensorInfo>& outputs() const { return outputs_; }
  const std::map<std::string, GroupPlace>& groups() const { return groups_; }
  const Graph& graph() const { return graph_; }
  int threads() const { return threads_; }

  /// A program for these symbols; what prepare_program says.
  Result<Program> prepare(const SymbolValues& symbols) const;

  /// Between these two the engine is Running and `communicators` may be used.
  Status begin_run();
  void end_run();
  std::span<const std::optional<Communicator>> communicators() const { return communicators_; }

 private:
  LoadedEngine() = default;
  void set_groups(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places);
  Status dry_run() const;
  Status check_communicators(const std::map<std::string, Communicator>& communicators) const;
  Status check_unbound() const;
  Status become_bound(const std::map<std::string, Communicator>& communicators);

  std::string path_;
  Graph graph_;
  Parameters parameters_;
  LoadReport report_;
  std::vector<TensorInfo> inputs_;
  std::vector<TensorInfo> outputs_;
  std::map<std::string, GroupPlace> groups_;
  std::map<std::string, int> group_index_;  // groups of more than one rank -> communicators_
  std::string digest_;                      // what the ranks have to have in common
  int threads_ = 1;

  mutable std::mutex mutex_;
  StateMachine state_;                                      // guarded by mutex_
  std::vector<std::optional<Communicator>> communicators_;  // written once, while Unbound
};

}  // namespace accord::engine
