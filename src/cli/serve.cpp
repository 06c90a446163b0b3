// `accord serve`: the HTTP server is a Python program, which starts the ranks and supervises them. The command checks
// the options and becomes accord.serve with the same options.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/number_checks.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

enum class ServeValue { kText, kPositive, kNonNegative };

struct ServeOption {
  const char* names;  // the last one is passed on
  ServeValue value;
  const char* meaning;
};

constexpr std::array kServeOptions = {
    ServeOption{"-n,--ranks", ServeValue::kPositive, "Ranks that share the model [1]"},
    ServeOption{"--host", ServeValue::kText, "Address to listen on; 0.0.0.0: all of this machine's [127.0.0.1]"},
    ServeOption{"--port", ServeValue::kNonNegative, "Port to listen on; 0: a free one [8000]"},
    ServeOption{"--model-name", ServeValue::kText, "The model's name in requests [the package's name]"},
    ServeOption{"--threads", ServeValue::kPositive, "Threads of each rank [ACCORD_THREADS]"},
    ServeOption{"--cache-tokens", ServeValue::kPositive, "Tokens that the cache holds [one full context]"},
    ServeOption{"--cache-dtype", ServeValue::kText, "float32, bfloat16 or int8 [float32]"},
    ServeOption{"--max-sequences", ServeValue::kPositive, "Sequences that one step computes [64]"},
    ServeOption{"--max-rows", ServeValue::kPositive, "Tokens that one step computes [512]"},
    ServeOption{"--canonical-ranks", ServeValue::kPositive,
                "A power of two: equal bits on any number of ranks that divides it"},
    ServeOption{"--activation-dtype", ServeValue::kText, "int8: round the inputs of quantized layers [none]"},
    ServeOption{"--memory-limit", ServeValue::kText,
                "Limit of a rank's weights, arenas and caches together, such as 2GiB [none]"},
    ServeOption{"--max-requests", ServeValue::kPositive,
                "Requests that may run or wait; more are refused with 429 [256]"},
    ServeOption{"--max-tokens", ServeValue::kPositive, "Limit of the tokens of an answer [the context]"},
    ServeOption{"--max-body-bytes", ServeValue::kPositive, "Limit of the body of a request [8388608]"},
    ServeOption{"--request-seconds", ServeValue::kPositive, "Time limit of a request [600]"},
    ServeOption{"--stall-seconds", ServeValue::kPositive,
                "Ranks that make no progress for so long are started again [60]"},
    ServeOption{"--drain-seconds", ServeValue::kNonNegative,
                "After SIGTERM, time for running requests to end [--request-seconds]"},
    ServeOption{"--api-keys", ServeValue::kText, "File with API keys, one a line; requests need one of them [none]"},
    ServeOption{"--tls-certificate", ServeValue::kText, "PEM file with the certificate, for HTTPS [none]"},
    ServeOption{"--tls-key", ServeValue::kText, "PEM file with the certificate's key [in the certificate's file]"},
    ServeOption{"--cors-origins", ServeValue::kText,
                "Origins of web pages that may call the server, between commas, or * [none]"},
};

struct ServeOptions {
  std::string package;
  std::map<std::string, std::string> values;  // by the last name of the option
  bool log_prompts = false;
};

std::string last_name(const ServeOption& option) {
  const std::string names = option.names;
  return names.substr(names.rfind(',') + 1);  // npos + 1 is 0
}

int serve(const ServeOptions& options) {
  std::vector<std::string> words = {options.package};
  for (const auto& [name, value] : options.values) {
    if (!value.empty()) words.push_back(name + "=" + value);
  }
  if (options.log_prompts) words.emplace_back("--log-prompts");
  const Status failed = become_python("accord.serve", words);
  fmt::print(stderr, "accord serve: {}\n", failed.message());
  return kFailure;
}

}  // namespace

void add_serve(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("serve", "Serve a language model over HTTP, with OpenAI's interface");
  const auto options = std::make_shared<ServeOptions>();
  command->add_option("package", options->package, "The package's directory")->required();
  for (const ServeOption& option : kServeOptions) {
    CLI::Option* added = command->add_option(option.names, options->values[last_name(option)], option.meaning);
    if (option.value == ServeValue::kPositive) added->check(positive_number());
    if (option.value == ServeValue::kNonNegative) added->check(non_negative_number());
  }
  command->add_flag("--log-prompts", options->log_prompts, "Log prompts and answers too");
  command->callback([options, &chosen] { chosen = [options] { return serve(*options); }; });
}

}  // namespace accord::cli
