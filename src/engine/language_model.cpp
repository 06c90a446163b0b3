// The public handles over the serving core. Before rank 0 sends its first plan, the ranks agree that each of them
// could create its cache.
#include "accord/language_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <span>

#include "engine/runtime/agreement.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/serving/communicator_channel.hpp"
#include "engine/serving/engine_model.hpp"
#include "engine/serving/generation.hpp"
#include "engine/serving/text_stream.hpp"
#include "engine/serving/token_stream.hpp"

namespace accord {

using engine::EngineModel;
using engine::Generation;

struct LanguageModel::State {
  std::shared_ptr<engine::LoadedEngine> engine;
  std::shared_ptr<EngineModel> model;
  std::shared_ptr<engine::PlanChannel> channel;
  std::unique_ptr<Generation> generation;  // on rank 0 only

  std::mutex texts_mutex;  // guards the members below, which are parsed on first use
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatFormat> chat_format;
};

namespace {

// Returns the communicator that connects all ranks; nullopt if there is only one rank.
Result<std::optional<Communicator>> connection(const engine::LoadedEngine& loaded,
                                               std::optional<Communicator> all_ranks) {
  if (all_ranks) return all_ranks->size() > 1 ? std::move(all_ranks) : std::nullopt;
  const auto communicators = loaded.groups().communicators();
  if (communicators.empty()) return std::optional<Communicator>();
  if (communicators.size() == 1) return communicators.front();
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("the engine is bound to {} groups: pass the communicator of all ranks", communicators.size()));
}

Status not_leading() {
  return {StatusCode::kWrongState, "only rank 0 accepts requests; the other ranks call follow()"};
}

// Parses `json` on first use and keeps the result in `kept`.
template <typename T>
Result<T> parsed(std::mutex& mutex, std::optional<T>& kept, const std::optional<std::string>& json,
                 std::string_view file) {
  const std::lock_guard lock(mutex);
  if (kept) return *kept;
  if (!json) {
    return Status(StatusCode::kNotFound,
                  fmt::format("the package has no {}: export with tokenizer=, or pass token ids", file));
  }
  ACCORD_ASSIGN_OR_RETURN(kept, T::parse(*json, file));
  return *kept;
}

Status check(const TextRequest& request, bool has_encoder) {
  std::string_view what;
  if (!request.prompt.empty() && !request.messages.empty()) what = "both a prompt and messages";
  if (!request.options.prompt.empty() && !has_encoder) what = "token ids: pass them to submit()";
  if (!request.options.prompt.empty() && !request.options.source.empty() && !request.prompt.empty())
    what = "both a text and token ids for the beginning of the answer";
  if (request.options.logprobs) what = "logprobs: only submit() returns them";
  if (request.options.first_sample != 0 || request.options.generated != 0)
    what = "a sample to resume: only submit() resumes samples";
  for (const std::string& stop : request.stop)
    if (stop.empty()) what = "an empty stop text";
  if (what.empty()) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("a request for text cannot have {}", what));
}

// Returns token ids as the source of an encoder that reads text.
SourceTensor source_of(std::span<const TokenId> tokens) {
  SourceTensor source{DType::kInt64, {static_cast<std::int64_t>(tokens.size())}, {}};
  source.data.resize(tokens.size() * sizeof(std::int64_t));
  std::ranges::copy(tokens, reinterpret_cast<std::int64_t*>(source.data.data()));
  return source;
}

// Repeats tokens that stand for whole images, so that each row of an image has one.
std::vector<TokenId> with_rows_of_images(std::vector<TokenId> tokens, TokenId token, std::int64_t images,
                                         std::int32_t rows) {
  if (images == 0 || rows % images != 0 || std::ranges::count(tokens, token) != images) return tokens;
  std::vector<TokenId> repeated;
  for (const TokenId one : tokens)
    repeated.insert(repeated.end(), one == token ? static_cast<std::size_t>(rows / images) : 1U, one);
  return repeated;
}

std::string digest_of(const LanguageModelOptions& options) {
  return fmt::format("{} tokens in blocks of {} as {}, {} sequences, {} rows", options.cache_tokens,
                     options.block_tokens, to_string(options.cache_dtype), options.max_sequences, options.max_rows);
}

}  // namespace

struct GenerationStream::State {
  std::shared_ptr<const void> model;  // must outlive `tokens`, whose destructor cancels the request
  engine::TokenStream tokens;
};

GenerationStream::GenerationStream(engine::TokenStream stream, std::shared_ptr<const void> model)
    : state_(std::make_shared<State>(State{std::move(model), std::move(stream)})) {}

RequestId GenerationStream::id() const { return state_->tokens.id(); }

Result<std::optional<GenerationEvent>> GenerationStream::next(std::chrono::milliseconds timeout) {
  Result<std::optional<GenerationEvent>> event = state_->tokens.next(timeout);
  if (event.ok() && !event->has_value()) state_->model = nullptr;
  return event;
}

void GenerationStream::cancel() { state_->tokens.cancel(); }

Result<LanguageModel> LanguageModel::create(const Engine& engine, const LanguageModelOptions& options,
                                            std::optional<Communicator> all_ranks) {
  auto state = std::make_shared<State>();
  state->engine = engine.engine_;
  if (engine.state() == EngineState::kUnbound) {
    return Status(StatusCode::kWrongState, "the engine is not bound: bind it before creating a language model");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::optional<Communicator> link, connection(*state->engine, std::move(all_ranks)));
  Result<std::shared_ptr<EngineModel>> model = EngineModel::create(state->engine, options);
  if (link) {
    ACCORD_RETURN_IF_ERROR(engine::agree({{"all ranks", *link}}, {model.status(), digest_of(options)}));
    state->channel = std::make_shared<engine::CommunicatorChannel>(*link);
  }
  if (!model.ok()) return model.status();
  state->model = *model;
  if (!link || link->rank() == 0) {
    ACCORD_ASSIGN_OR_RETURN(state->generation, Generation::create(state->model, state->channel));
  }
  return LanguageModel(std::move(state));
}

Result<GenerationStream> LanguageModel::submit(GenerationRequest request) {
  if (!leads()) return not_leading();
  if (request.prompt.empty()) request.prompt = start_tokens();  // empty without an encoder
  ACCORD_ASSIGN_OR_RETURN(engine::TokenStream stream, state_->generation->submit(std::move(request)));
  return {GenerationStream(std::move(stream), state_)};
}

Result<RequestId> LanguageModel::submit(GenerationRequest request, GenerationCallback callback) {
  if (!leads()) return not_leading();
  return state_->generation->submit(std::move(request), std::move(callback));
}

Status LanguageModel::cancel(RequestId id) { return leads() ? state_->generation->cancel(id) : not_leading(); }

Result<TextStream> LanguageModel::generate(TextRequest request) {
  if (!leads()) return not_leading();
  ACCORD_RETURN_IF_ERROR(check(request, has_encoder()));
  ACCORD_ASSIGN_OR_RETURN(const Tokenizer text, tokenizer());
  // With an encoder, the text is what it reads, or if that is given, the beginning of the answer.
  const bool is_source = has_encoder() && request.options.source.empty();
  EncodeOptions encode{has_encoder() && !is_source ? SpecialTokens::kLeaveOut : SpecialTokens::kAdd,
                       TextLength::kWhole};
  if (!request.messages.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const ChatFormat chat, chat_format());
    ACCORD_ASSIGN_OR_RETURN(request.prompt, chat.render(request.messages));
    encode.special_tokens = SpecialTokens::kLeaveOut;
  }
  ACCORD_ASSIGN_OR_RETURN(std::vector<TokenId> tokens_of_text, text.encode(request.prompt, encode));
  const std::vector<SourceTensor>& source = request.options.source;
  if (const std::optional<TokenId> token = source_token(); token && !source.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const std::int32_t rows, state_->model->source_rows(source));
    tokens_of_text = with_rows_of_images(std::move(tokens_of_text), *token, source.front().shape.front(), rows);
  }
  if (is_source) {
    request.options.source = {source_of(tokens_of_text)};
  } else if (!tokens_of_text.empty()) {
    request.options.prompt = tokens_of_text;
  }
  std::vector<TokenId>& stop_tokens = request.options.stop_tokens;
  stop_tokens.insert(stop_tokens.end(), this->stop_tokens().begin(), this->stop_tokens().end());
  const std::size_t prompt_tokens = is_source ? tokens_of_text.size() : request.options.prompt.size();
  const int samples = request.options.samples;
  ACCORD_ASSIGN_OR_RETURN(GenerationStream tokens, submit(std::move(request.options)));
  return TextStream(std::make_shared<TextStream::State>(std::move(tokens), text, request.stop, prompt_tokens, samples));
}

Status LanguageModel::follow() {
  if (state_->generation)
    return Status(StatusCode::kWrongState, "rank 0 cannot follow: only the other ranks call follow()");
  return engine::follow(*state_->model, *state_->channel);
}

Status LanguageModel::stop() {
  if (!state_->generation)
    return Status(StatusCode::kWrongState, "only rank 0 can stop the model; the other ranks stop with it");
  return state_->generation->stop();
}

Status LanguageModel::status() const { return leads() ? state_->generation->status() : not_leading(); }

Result<GenerationStats> LanguageModel::stats() const {
  if (!leads()) return not_leading();
  return state_->generation->stats();
}

bool LanguageModel::leads() const { return state_->generation != nullptr; }
std::int32_t LanguageModel::max_context() const { return state_->model->limits().max_context; }
std::int32_t LanguageModel::vocabulary() const { return state_->model->limits().vocabulary; }
const std::vector<TokenId>& LanguageModel::stop_tokens() const {
  return state_->engine->model().language_model->stop_tokens;
}
bool LanguageModel::has_encoder() const { return state_->engine->encoder() != nullptr && !source_token(); }
std::optional<TokenId> LanguageModel::source_token() const {
  return state_->engine->model().language_model->source_token;
}
std::int32_t LanguageModel::max_source() const { return state_->model->limits().max_source; }
const std::vector<TokenId>& LanguageModel::start_tokens() const {
  return state_->engine->model().language_model->start_tokens;
}
const std::vector<std::string>& LanguageModel::adapters() const { return state_->model->limits().adapters; }
std::size_t LanguageModel::cache_bytes() const { return state_->model->cache_bytes(); }
const std::optional<std::string>& LanguageModel::tokenizer_json() const {
  return state_->engine->model().tokenizer_json;
}

Result<Tokenizer> LanguageModel::tokenizer() const {
  return parsed(state_->texts_mutex, state_->tokenizer, state_->engine->model().tokenizer_json, "tokenizer.json");
}

Result<ChatFormat> LanguageModel::chat_format() const {
  return parsed(state_->texts_mutex, state_->chat_format, state_->engine->model().chat_format_json, "chat_format.json");
}

}  // namespace accord
