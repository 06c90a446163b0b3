// `accord engine generate`: rank 0 sends requests to the model and shows the answers; the other ranks follow it. The
// ranks are those of a launcher, or processes that the command starts itself. In a conversation, a line that cannot
// be answered is reported and left out of the conversation. The interrupt key cancels the current answer and ends the
// command.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accord/language_model.hpp"
#include "base/fd.hpp"
#include "cli/command_ranks.hpp"
#include "cli/engine/commands.hpp"
#include "cli/engine/generate/answer.hpp"
#include "cli/engine/generate/lines.hpp"
#include "cli/engine/load.hpp"
#include "cli/engine/safetensors.hpp"
#include "cli/interrupt.hpp"
#include "cli/number_checks.hpp"

namespace accord::cli {
namespace {

struct GenerateOptions {
  std::string package;
  std::optional<std::string> prompt;
  std::string source;  // file with the encoder's input
  std::string system;
  bool chat = false;
  bool interactive = false;
  int ranks = 0;  // 0: those of a launcher, or one
  LoadChoice load;
  LanguageModelOptions model;
  std::string cache_dtype = "float32";
  TextRequest request;
  bool stream = true;
  std::optional<bool> stats;  // absent: on a terminal
  bool as_json = false;
};

Result<std::vector<SourceTensor>> read_source(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<NamedTensor> tensors, read_safetensors(path));
  if (tensors.size() != 1)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: it has {} tensors; expected the encoder's input", path, tensors.size()));
  return std::vector<SourceTensor>{{tensors[0].dtype, std::move(tensors[0].shape), std::move(tensors[0].bytes)}};
}

class Session {
 public:
  Session(const GenerateOptions& options, LanguageModel model, double load_seconds, const InterruptWatch& watch,
          int ranks)
      : options_(options), model_(std::move(model)), load_seconds_(load_seconds), watch_(watch), ranks_(ranks) {
    if (!options_.system.empty()) conversation_.push_back({"system", options_.system});
  }

  Status answer_prompt() {
    TextRequest request = options_.request;
    if (!options_.source.empty()) {
      ACCORD_ASSIGN_OR_RETURN(request.options.source, read_source(options_.source));
    }
    if (options_.chat) {
      request.messages = conversation_;
      request.messages.push_back({"user", *options_.prompt});
    } else {
      request.prompt = options_.prompt.value_or("");
    }
    return answer(std::move(request)).status();
  }

  Status converse() {
    ACCORD_RETURN_IF_ERROR(model_.chat_format().status());
    InputLines lines;
    const bool asks = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
    while (!watch_.interrupted()) {
      if (asks) {
        fmt::print("> ");
        std::fflush(stdout);
      }
      ACCORD_ASSIGN_OR_RETURN(std::optional<std::string> line, lines.next(watch_.descriptor()));
      if (!line) break;
      if (line->empty()) continue;
      conversation_.push_back({"user", *std::move(line)});
      TextRequest request = options_.request;
      request.messages = conversation_;
      Result<Answer> reply = answer(std::move(request));
      if (reply.ok()) {
        conversation_.push_back({"assistant", reply->text});
      } else if (is_of_request(reply.status().code())) {
        conversation_.pop_back();
        (void)engine_failure("generate", reply.status());
      } else {
        return reply.status();
      }
    }
    return {};
  }

 private:
  // Whether an error concerns one request only, after which the model answers others.
  static bool is_of_request(StatusCode code) {
    return code == StatusCode::kInvalidArgument || code == StatusCode::kResourceExhausted;
  }

  Result<Answer> answer(TextRequest request) {
    const Showing showing = options_.as_json  ? Showing::kSilent
                            : options_.stream ? Showing::kStreaming
                                              : Showing::kAtEnd;
    ACCORD_ASSIGN_OR_RETURN(TextStream stream, model_.generate(std::move(request)));
    ACCORD_ASSIGN_OR_RETURN(Answer answer, read_answer(std::move(stream), showing, watch_));
    if (options_.as_json) fmt::print("{}\n", json_of(answer).dump());
    if (options_.stats.value_or(isatty(STDERR_FILENO) != 0)) fmt::print(stderr, "[{}]\n", stats_text(answer));
    std::fflush(nullptr);
    return answer;
  }

  nlohmann::ordered_json json_of(const Answer& answer) const {
    nlohmann::ordered_json json = {{"package", options_.package},
                                   {"ranks", ranks_},
                                   {"text", answer.text},
                                   {"finish", to_string(answer.finish)},
                                   {"prompt_tokens", answer.usage.prompt_tokens},
                                   {"completion_tokens", answer.usage.completion_tokens},
                                   {"first_token_seconds", answer.first_token_seconds},
                                   {"tokens_per_second", nullptr},
                                   {"load_seconds", load_seconds_}};
    if (const auto rate = tokens_per_second(answer)) json["tokens_per_second"] = *rate;
    return json;
  }

  const GenerateOptions& options_;
  LanguageModel model_;
  const double load_seconds_;
  const InterruptWatch& watch_;
  const int ranks_;
  std::vector<ChatMessage> conversation_;
};

Status generate(GenerateOptions options, const CommandRanks& ranks, const InterruptWatch& watch) {
  ACCORD_ASSIGN_OR_RETURN(options.model.cache_dtype, dtype_from_string(options.cache_dtype));
  ACCORD_ASSIGN_OR_RETURN(const Communicator comm, ranks.communicator("generate"));
  ACCORD_ASSIGN_OR_RETURN(const GroupChoice group, choose_groups(options.package, options.load, comm.size()));
  ACCORD_ASSIGN_OR_RETURN(const Engine engine, load_on_ranks(options.package, comm, group, options.load));
  ACCORD_ASSIGN_OR_RETURN(LanguageModel model, LanguageModel::create(engine, options.model, comm));
  if (!model.leads()) return model.follow();
  Session session(options, model, engine.load_report().seconds, watch, comm.size());
  const Status answered = options.interactive ? session.converse() : session.answer_prompt();
  const Status stopped = model.stop();
  return answered.ok() ? stopped : answered;
}

int run(const GenerateOptions& options) {
  const InterruptWatch watch;
  const Result<CommandRanks> ranks =
      CommandRanks::create(options.ranks > 0 ? std::optional(options.ranks) : std::nullopt, 1);
  if (!ranks.ok()) return engine_failure("generate", ranks.status());
  const auto report_interrupted = [] { fmt::print(stderr, "accord engine generate: interrupted\n"); };
  const InterruptDeadline deadline(ranks->rank(), report_interrupted);
  const Status status = generate(options, *ranks, watch);
  if (watch.interrupted()) {
    if (ranks->rank() == 0) report_interrupted();
    return kInterrupted;
  }
  if (status.ok()) return kSuccess;
  return ranks->rank() == 0 ? engine_failure("generate", status) : kFailure;  // rank 0 prints the error
}

void add_model_options(CLI::App& command, GenerateOptions& options) {
  command.add_option("-n,--ranks", options.ranks, "Ranks to start here [1]; under a launcher, its ranks are used")
      ->check(CLI::Range(1, 1024));
  add_load_options(command, options.load);
  command.add_option("--cache-tokens", options.model.cache_tokens, "Tokens that the cache holds [one full context]")
      ->check(positive_number());
  command.add_option("--cache-dtype", options.cache_dtype, "float32, bfloat16 or int8 [float32]");
}

void add_sampling_options(CLI::App& command, GenerateOptions& options) {
  SamplingOptions& sampling = options.request.options.sampling;
  command.add_option("--adapter", options.request.options.adapter, "The name of an adapter in the package [none]");
  command
      .add_option("--max-new-tokens", options.request.options.max_new_tokens,
                  "Maximum number of tokens in an answer [as many as the context holds]")
      ->check(positive_number());
  command.add_option("--temperature", sampling.temperature, "0 takes the best token [0]")->check(non_negative_number());
  command.add_option("--top-k", sampling.top_k, "Draw from the K best tokens; 0: all [0]")
      ->check(non_negative_number());
  command.add_option("--top-p", sampling.top_p, "Draw from the best tokens with this total probability [1]")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--min-p", sampling.min_p,
                  "Draw from tokens with at least this fraction of the best token's probability [0]")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "Divides the logits of earlier tokens [1]")
      ->check(positive_number());
  command.add_option("--seed", sampling.seed, "Equal seeds draw equal tokens [0]")->check(non_negative_number());
  command
      .add_option("--stop", options.request.stop, "A text that ends an answer and is not part of it; may be repeated")
      ->take_all();
}

}  // namespace

void add_engine_generate(CLI::App& engine, Action& chosen) {
  CLI::App* command = engine.add_subcommand("generate", "Continue a text or converse with a language model");
  const auto options = std::make_shared<GenerateOptions>();
  command->add_option("package", options->package, "The package's directory")->required();
  CLI::Option* prompt = command->add_option("--prompt", options->prompt,
                                            "The text to continue, or that an encoder reads, or the user's message");
  CLI::Option* source = command->add_option("--source", options->source,
                                            "For a model with an encoder: a safetensors file with its input, such as "
                                            "the features of a recording (the prompt then begins the answer), or the "
                                            "pixels of images, for which the prompt has an image token each");
  command->add_flag("--chat", options->chat, "The prompt is a message, written in the model's chat format");
  command->add_option("--system", options->system, "The system's message before it; implies --chat");
  CLI::Option* interactive =
      command->add_flag("--interactive", options->interactive, "Converse: a message on each line of standard input");
  prompt->excludes(interactive);
  source->excludes(interactive);
  add_model_options(*command, *options);
  add_sampling_options(*command, *options);
  CLI::Option* json = command->add_flag("--json", options->as_json, "One JSON object for each answer, on one line");
  command
      ->add_flag("--stream,!--no-stream", options->stream, "Show the text as it arrives (the default), or at its end")
      ->excludes(json);
  command->add_flag("--stats,!--no-stats", options->stats,
                    "Print the number of tokens, the time to the first and tokens/s on standard error [on a terminal]");
  command->callback([options, &chosen] {
    options->chat |= !options->system.empty();
    if (!options->prompt && !options->interactive && (options->source.empty() || options->chat))
      throw CLI::RequiredError("--prompt or --interactive");
    chosen = [options] { return run(*options); };
  });
}

}  // namespace accord::cli
