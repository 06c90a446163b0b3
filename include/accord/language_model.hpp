#pragma once
// Language models that answer requests: an engine, its KV cache, and the scheduler that shares them among requests.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "accord/generation.hpp"
#include "accord/text_generation.hpp"
#include "accord/tokenizer.hpp"

namespace accord {

namespace engine {
class EngineModel;
class Generation;
class PlanChannel;
class TokenStream;
}  // namespace engine

struct LanguageModelOptions {
  /// Capacity of the cache in tokens, for all sequences and their sources together; 0: one full context.
  std::int32_t cache_tokens = 0;
  /// A multiple of 16; 0: 16, or up to 256 for a model whose layers keep a state, of which each block has a copy.
  std::int32_t block_tokens = 0;
  DType cache_dtype = DType::kFloat32;  ///< or bfloat16, or int8 with a scale for each token and head
  std::int32_t max_sequences = 64;      ///< sequences that one step computes
  std::int32_t max_rows = 512;          ///< tokens that one step computes; longer prompts take several steps
};

/// The events of one request, as they arrive. Used by one thread at a time; its destruction cancels the request if it
/// has not ended. Until it has returned its last event, it keeps its model alive, even if no handle of the model is
/// left.
class GenerationStream {
 public:
  RequestId id() const;
  /// Waits for the next event. Returns nullopt once all samples have ended, and kTimeout after `timeout`; it may then
  /// be called again.
  [[nodiscard]] Result<std::optional<GenerationEvent>> next(std::chrono::milliseconds timeout);
  /// Ends the request soon. Events that are available, or arrive until then, are returned first.
  void cancel();

  /// `model`: any object that the stream must keep alive.
  GenerationStream(engine::TokenStream stream, std::shared_ptr<const void> model);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A language model on all ranks of an engine: rank 0 takes requests, decides what is computed and samples; the other
/// ranks follow.
///
/// A handle: copies refer to the same model. Thread-safe. On rank 0 the model stops when its last handle is gone and
/// no stream is in progress.
class LanguageModel {
 public:
  /// Creates the cache and, on rank 0, the thread that runs the model. Collective over the engine's groups, and
  /// agreed: if one rank cannot, every rank gets its error. `all_ranks` connects all ranks of an engine that is bound
  /// to several groups. The engine must be bound. From now on its contexts may be run only on all ranks alike,
  /// between generations. Fails with kUnsupported if the package is not a language model, kInvalidArgument for
  /// invalid options, or kResourceExhausted.
  [[nodiscard]] static Result<LanguageModel> create(const Engine& engine, const LanguageModelOptions& options = {},
                                                    std::optional<Communicator> all_ranks = {});

  /// Continues a prompt. For rank 0; kWrongState on the other ranks. Fails with kInvalidArgument, which names the
  /// invalid option, or the tensor of the source that does not fit the encoder; kResourceExhausted if too many requests
  /// are waiting; and, once the model has ended, kClosed after stop() or the failure that ended it.
  [[nodiscard]] Result<GenerationStream> submit(GenerationRequest request);
  /// The same, with a callback for the events. The model does not wait for them to be processed, and nothing keeps it
  /// alive for them.
  [[nodiscard]] Result<RequestId> submit(GenerationRequest request, GenerationCallback callback);
  /// Ends a request soon. Fails with kNotFound if the request has ended or never existed.
  Status cancel(RequestId id);
  /// Continues a text or answers a conversation, in text. With an encoder, the text is the source; if the request has
  /// a source already, the text is the beginning of the answer. For rank 0. Fails as submit() does; with kNotFound if
  /// the package has no tokenizer, or no chat format for a request with messages; and with the errors of
  /// Tokenizer::encode() and ChatFormat::render().
  [[nodiscard]] Result<TextStream> generate(TextRequest request);
  /// For the other ranks: computes what rank 0 decides, until rank 0 stops (ok) or something fails on any rank.
  [[nodiscard]] Status follow();
  /// For rank 0: ends all requests and the follow() calls of the other ranks. Idempotent. Returns the failure if
  /// there was one.
  Status stop();

  /// For rank 0: ok while the model runs, kClosed after stop(), and otherwise the failure that ended it.
  Status status() const;
  /// For rank 0.
  [[nodiscard]] Result<GenerationStats> stats() const;

  /// Whether this is rank 0, which takes requests; other ranks follow.
  bool leads() const;
  /// Maximum number of tokens of one sequence, prompt and answer together.
  std::int32_t max_context() const;
  std::int32_t vocabulary() const;
  /// The tokens that end a text, as listed in the package: for GenerationRequest::stop_tokens.
  const std::vector<TokenId>& stop_tokens() const;
  /// True if each request has a source that all tokens attend to (T5, BART, Whisper).
  bool has_encoder() const;
  /// The token of prompts that stands for a row of the source, which an encoder of images makes (LLaVA, SmolVLM);
  /// nullopt for other models.
  std::optional<TokenId> source_token() const;
  /// Rows of the longest source: its tokens, the frames that an encoder of audio makes, or the rows that one of images
  /// makes; 0 without an encoder.
  std::int32_t max_source() const;
  /// The tokens that an answer begins with, as listed in the package; none without an encoder.
  const std::vector<TokenId>& start_tokens() const;
  /// The names of the adapters in the package, which requests may choose.
  const std::vector<std::string>& adapters() const;
  std::size_t cache_bytes() const;
  /// The package's tokenizer.json; nullopt if it has none.
  const std::optional<std::string>& tokenizer_json() const;
  /// The package's tokenizer and chat format, which are read on first use. Fail with kNotFound if the package has
  /// none, or with kUnsupported and the reason if its chat template does not have table form.
  [[nodiscard]] Result<Tokenizer> tokenizer() const;
  [[nodiscard]] Result<ChatFormat> chat_format() const;

 private:
  struct State;
  explicit LanguageModel(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
