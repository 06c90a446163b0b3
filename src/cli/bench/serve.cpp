// The command checks the options and becomes accord.serve.bench with the same options.
#include "cli/bench/serve.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/python_options.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

constexpr std::array kLoadOptions = {
    PythonOption{"--clients", PythonValue::kText,
                 "Clients that each send a request after the answer to the last one; several numbers (1,8,32) are "
                 "measured one after the other [1]"},
    PythonOption{"--rate", PythonValue::kText,
                 "Requests per second, at random times (Poisson), instead of --clients; or several such numbers"},
    PythonOption{"--requests", PythonValue::kPositive,
                 "Requests of each measurement [10 for each client, at least 30]"},
    PythonOption{"--seconds", PythonValue::kPositive, "Time after which a measurement sends no more requests [none]"},
    PythonOption{"--prompt-tokens", PythonValue::kText, "Length of the prompts, or its range: 32:512 [128]"},
    PythonOption{"--answer-tokens", PythonValue::kText,
                 "Limit of the answers, or its range [128; with --dataset, the length of its answers]"},
    PythonOption{"--dataset", PythonValue::kText, "JSON file of conversations, as ShareGPT has them, for the prompts"},
    PythonOption{"--chat", PythonValue::kFlag, "Use /v1/chat/completions instead of /v1/completions"},
    PythonOption{"--model", PythonValue::kText, "The model's name [the first one that the server lists]"},
    PythonOption{"--body", PythonValue::kText, "JSON object with more fields for every request [none]"},
    PythonOption{"--seed", PythonValue::kNonNegative, "Of prompts, lengths and arrivals [0]"},
    PythonOption{"--timeout", PythonValue::kPositive, "Seconds that a request may take [600]"},
    PythonOption{"--json", PythonValue::kText,
                 "Write the results as JSON; - is standard output, without the table [none]"},
    PythonOption{"--plot", PythonValue::kText, "Draw the distributions of the times, as PNG; needs matplotlib [none]"},
};

int bench_serve(const std::string& url, const PythonOptions& options) {
  std::vector<std::string> words = options.words();
  words.insert(words.begin(), url);
  const Status failed = become_python("accord.serve.bench", words);
  fmt::print(stderr, "accord bench serve: {}\n", failed.message());
  return kFailure;
}

}  // namespace

void add_bench_serve(CLI::App& bench, Action& chosen) {
  CLI::App* command = bench.add_subcommand(
      "serve", "Measure an HTTP server of a language model that has OpenAI's interface; OPENAI_API_KEY: its API key");
  const auto url = std::make_shared<std::string>();
  command->add_option("url", *url, "The server: http://127.0.0.1:8000")->required();
  const PythonOptions options(*command, kLoadOptions);
  command->callback([url, options, &chosen] { chosen = [url, options] { return bench_serve(*url, options); }; });
}

}  // namespace accord::cli
