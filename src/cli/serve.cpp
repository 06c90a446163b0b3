// `accord serve`: the HTTP server is a Python program, which starts the ranks and supervises them. The command checks
// the options and becomes accord.serve with the same options.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/python_options.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

constexpr std::array kServeOptions = {
    PythonOption{"-n,--ranks", PythonValue::kPositive, "Ranks that share each model, on this node [1]"},
    PythonOption{"--group", PythonValue::kText, "Logical group of the packages that the ranks form [the only one]"},
    PythonOption{"--pp", PythonValue::kPositive, "Pipeline stages that the ranks are divided into [1]"},
    PythonOption{"--cp", PythonValue::kPositive, "Ranks that divide the tokens of each sequence [1]"},
    PythonOption{"--nnodes", PythonValue::kPositive,
                 "Nodes, each with an `accord serve` of its own; that of node 0 answers requests [1]"},
    PythonOption{"--node-rank", PythonValue::kNonNegative, "This node, from 0"},
    PythonOption{"--rdzv-endpoint", PythonValue::kText,
                 "HOST[:PORT] of node 0, where the nodes meet; further models take the ports after it [port 29400]"},
    PythonOption{"--rdzv-timeout", PythonValue::kPositive, "Seconds for all nodes to arrive [600]"},
    PythonOption{"--device", PythonValue::kText,
                 "cpu, cuda:0, or cuda for a GPU per rank, by the rank's number on its node [cpu]"},
    PythonOption{"--host", PythonValue::kText, "Address to listen on; 0.0.0.0: all of this machine's [127.0.0.1]"},
    PythonOption{"--port", PythonValue::kNonNegative, "Port to listen on; 0: a free one [8000]"},
    PythonOption{"--model-name", PythonValue::kText, "The name of a single model in requests [the package's name]"},
    PythonOption{"--threads", PythonValue::kPositive, "Threads of each rank [ACCORD_THREADS]"},
    PythonOption{"--cache-tokens", PythonValue::kPositive, "Tokens that the cache holds [one full context]"},
    PythonOption{"--cache-dtype", PythonValue::kText, "float32, bfloat16 or int8 [float32]"},
    PythonOption{"--max-sequences", PythonValue::kPositive, "Sequences that one step computes [64]"},
    PythonOption{"--max-rows", PythonValue::kPositive, "Tokens that one step computes [512]"},
    PythonOption{"--canonical-ranks", PythonValue::kPositive,
                 "A power of two: equal bits on any number of ranks that divides it"},
    PythonOption{"--overlap-rows", PythonValue::kPositive,
                 "Compute steps of at least this many tokens in two halves, each during the other's sums [never]"},
    PythonOption{"--all-reduce-dtype", PythonValue::kText, "int8: send sums over the ranks as 8-bit codes [exact]"},
    PythonOption{"--activation-dtype", PythonValue::kText, "int8: round the inputs of quantized layers [none]"},
    PythonOption{"--memory-limit", PythonValue::kText,
                 "Limit of a rank's weights, arenas and caches together, such as 2GiB [none]"},
    PythonOption{
        "--max-connections", PythonValue::kPositive,
        "Open connections; then the one that has been idle for longest is closed, or the new one refused [1024]"},
    PythonOption{"--header-seconds", PythonValue::kPositive, "Time for the headers of a request to arrive [20]"},
    PythonOption{"--send-seconds", PythonValue::kPositive,
                 "Time after which a client that takes nothing of its answer is disconnected [60]"},
    PythonOption{"--max-requests", PythonValue::kPositive,
                 "Requests to a model that may run or wait; more are refused with 429 [256]"},
    PythonOption{"--max-tokens", PythonValue::kPositive, "Limit of the tokens of an answer [the context]"},
    PythonOption{"--max-body-bytes", PythonValue::kPositive, "Limit of the body of a request [8388608]"},
    PythonOption{"--request-seconds", PythonValue::kPositive, "Time limit of a request [600]"},
    PythonOption{"--stall-seconds", PythonValue::kPositive,
                 "Ranks that make no progress for so long are started again [60]"},
    PythonOption{"--drain-seconds", PythonValue::kNonNegative,
                 "After SIGTERM, time for running requests to end; on other nodes than 0, for node 0 to end "
                 "[--request-seconds; 0]"},
    PythonOption{"--api-keys", PythonValue::kText, "File with API keys, one a line; requests need one of them [none]"},
    PythonOption{"--tls-certificate", PythonValue::kText, "PEM file with the certificate, for HTTPS [none]"},
    PythonOption{"--tls-key", PythonValue::kText, "PEM file with the certificate's key [in the certificate's file]"},
    PythonOption{"--cors-origins", PythonValue::kText,
                 "Origins of web pages that may call the server, between commas, or * [none]"},
    PythonOption{"--trusted-proxies", PythonValue::kText,
                 "Addresses and networks, between commas, whose X-Forwarded-For names the client [127.0.0.1,::1]"},
    PythonOption{"--log-prompts", PythonValue::kFlag, "Log prompts and answers too"},
};

int serve(const std::vector<std::string>& models, const PythonOptions& options) {
  std::vector<std::string> words = options.words();
  words.insert(words.begin(), models.begin(), models.end());
  const Status failed = become_python("accord.serve", words);
  fmt::print(stderr, "accord serve: {}\n", failed.message());
  return kFailure;
}

}  // namespace

void add_serve(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("serve", "Serve language models over HTTP, with OpenAI's interface");
  const auto models = std::make_shared<std::vector<std::string>>();
  command->add_option("models", *models, "The packages' directories, or NAME=DIRECTORY; requests give the name")
      ->required();
  const PythonOptions options(*command, kServeOptions);
  command->callback([models, options, &chosen] { chosen = [models, options] { return serve(*models, options); }; });
}

}  // namespace accord::cli
