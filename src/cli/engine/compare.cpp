// `accord engine compare`: only Python knows PyTorch, so the command becomes Python's accord.engines.comparison with
// the same options.
#include <memory>
#include <string>
#include <vector>

#include "cli/engine/commands.hpp"
#include "cli/engine/load.hpp"
#include "cli/number_checks.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

struct CompareOptions {
  std::string package;
  std::string model;
  std::string inputs;
  std::string tokens;
  std::string tolerance;
  std::string group;
  std::string device;
  std::string threads;
  std::string canonical_ranks;
  std::string all_reduce_dtype;
  std::string activation_dtype;
  std::string memory_limit;
  bool as_json = false;
};

int compare(const CompareOptions& options) {
  std::vector<std::string> words = {options.package};
  for (const auto& [name, value] : {std::pair<const char*, const std::string&>{"--model", options.model},
                                    {"--inputs", options.inputs},
                                    {"--tokens", options.tokens},
                                    {"--tolerance", options.tolerance},
                                    {"--group", options.group},
                                    {"--device", options.device},
                                    {"--threads", options.threads},
                                    {"--canonical-ranks", options.canonical_ranks},
                                    {"--all-reduce-dtype", options.all_reduce_dtype},
                                    {"--activation-dtype", options.activation_dtype},
                                    {"--memory-limit", options.memory_limit}}) {
    if (value.empty()) continue;
    words.emplace_back(name);
    words.push_back(value);
  }
  if (options.as_json) words.emplace_back("--json");
  return engine_failure("compare", become_python("accord.engines.comparison", words));
}

}  // namespace

void add_engine_compare(CLI::App& engine, Action& chosen) {
  CLI::App* command = engine.add_subcommand("compare", "Compare a package with PyTorch, module by module");
  const auto options = std::make_shared<CompareOptions>();
  command->add_option("package", options->package, "The package's directory")->required();
  command
      ->add_option("--model", options->model,
                   "The model in PyTorch: a folder of transformers, or FILE.py:FUNCTION that creates it")
      ->required();
  command->add_option("--inputs", options->inputs,
                      "safetensors file with the engine's inputs by name; a language model needs none");
  command->add_option("--tokens", options->tokens, "Length of the sequence, for a language model without --inputs [16]")
      ->check(positive_number());
  command
      ->add_option("--tolerance", options->tolerance,
                   "Limit of the largest difference divided by the largest magnitude")
      ->check(non_negative_number());
  command->add_option("--group", options->group, "Logical group that the ranks of the job form [tp]");
  command->add_option(
      "--device", options->device,
      "Where the package runs: cpu, cuda:0, or cuda for a GPU per rank, by the rank's number on its host [cpu]");
  command->add_option("--threads", options->threads, "Threads of each rank [ACCORD_THREADS]")->check(positive_number());
  command
      ->add_option("--canonical-ranks", options->canonical_ranks,
                   "A power of two: outputs have the same bits on any number of ranks that divides it")
      ->check(positive_number());
  add_dtype_options(*command, options->all_reduce_dtype, options->activation_dtype);
  command->add_option("--memory-limit", options->memory_limit,
                      "Limit of a rank's weights, arenas and caches together, such as 2GiB");
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return compare(*options); }; });
}

}  // namespace accord::cli
