// The names are torchrun's, so that a program cannot tell the two launchers apart. With
// TORCHELASTIC_USE_AGENT_STORE=True all ranks of torch.distributed are clients of the store at
// MASTER_ADDR:MASTER_PORT.
#include "cli/launch/rank_environment.hpp"

#include <fmt/format.h>

#include <map>

#include "base/config.hpp"

namespace accord::cli {

std::map<std::string, std::string> rank_variables(const Job& job, const Start& start, int local_rank) {
  std::map<std::string, std::string> variables;
  const std::string rank = std::to_string(start.first_rank + local_rank);
  const std::string world_size = std::to_string(start.world_size);
  variables["RANK"] = rank;
  variables["WORLD_SIZE"] = world_size;
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(job.ranks_here);
  variables["GROUP_RANK"] = std::to_string(start.node);
  variables["GROUP_WORLD_SIZE"] = std::to_string(job.nodes);
  variables["ROLE_NAME"] = job.role;
  variables["ROLE_RANK"] = rank;
  variables["ROLE_WORLD_SIZE"] = world_size;
  variables["MASTER_ADDR"] = start.master_host;
  variables["MASTER_PORT"] = std::to_string(start.master_port);
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(start.generation);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(job.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = job.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = start.hosts_torch_store ? "True" : "False";
  if (job.elastic) variables["ACCORD_ELASTIC"] = elastic_text(job);
  variables["ACCORD_JOB_STORE"] = start.job_store;  // even if empty: a job inside a job inherits the outer one's
  if (!job.route.empty()) {
    variables["ACCORD_ROUTE"] = job.route;
    variables["TORCH_DEVICE_BACKEND_AUTOLOAD"].assign(1, '1');  // without it import torch does not read the switch
  }
  return variables;
}

std::vector<std::string> rank_environment(const Job& job, const Start& start, int local_rank, int cores) {
  std::map<std::string, std::string> variables = rank_variables(job, start, local_rank);
  variables.merge(process_environment());
  if (!job.elastic) variables.erase("ACCORD_ELASTIC");  // that of a job around this one
  variables.try_emplace("OMP_NUM_THREADS", std::to_string(cores));

  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(fmt::format("{}={}", name, value));
  return environment;
}

}  // namespace accord::cli
