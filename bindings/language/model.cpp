// A model's handle must be destroyed while the interpreter is running: its destructor joins a thread, which calls
// nothing of Python's.
#include "bindings/language/model.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "accord/language_model.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/engine/engine.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/language/generation_queue.hpp"
#include "bindings/language/requests.hpp"
#include "bindings/language/text_stream.hpp"
#include "bindings/language/tokenizer.hpp"

namespace accord::python {
namespace {

struct ModelHandle {
  ProcessBound<LanguageModel> model;
  std::optional<Communicator> all_ranks;

  LanguageModel& use() { return model.use("this language model"); }
};

struct StreamHandle {
  ProcessBound<GenerationStream> stream;

  GenerationStream& use() { return stream.use("this stream"); }
};

ModelHandle create_model(nb::handle engine, std::int32_t cache_tokens, std::int32_t block_tokens,
                         const std::string& dtype, std::int32_t max_sequences, std::int32_t max_rows,
                         CommunicatorHandle* all_ranks) {
  std::optional<Communicator> everyone;
  if (all_ranks != nullptr) everyone = all_ranks->use();
  const LanguageModelOptions options{cache_tokens, block_tokens, value_or_raise(dtype_from_string(dtype)),
                                     max_sequences, max_rows};
  LanguageModel model = value_or_raise(run_interruptibly(
      [loaded = engine_of(engine), options, everyone] { return LanguageModel::create(loaded, options, everyone); }));
  return {ProcessBound<LanguageModel>(std::move(model)), std::move(everyone)};
}

void bind_stream(nb::module_& module) {
  nb::class_<StreamHandle>(
      module, "GenerationStream",
      "The events of one request, as they arrive. Keeps its model alive; its destruction cancels the request if it "
      "has not ended.")
      .def_prop_ro("id", [](StreamHandle& self) { return self.use().id(); })
      .def(
          "cancel", [](StreamHandle& self) { self.use().cancel(); }, "Ends the request soon.")
      .def("__iter__", [](nb::object self) { return self; })
      .def(
          "__next__", [](StreamHandle& self) { return next_of<GenerationEvent>(self.use()); },
          nb::sig("def __next__(self) -> GenerationEvent"));
}

TextStreamHandle generate(ModelHandle& self, nb::handle prompt, std::vector<std::string> stop,
                          const nb::kwargs& options) {
  TextRequest request;
  if (nb::isinstance<nb::str>(prompt)) {
    request.prompt = text_argument(prompt, "prompt");
  } else {
    request.messages = messages_argument(prompt);
    if (request.messages.empty()) raise_invalid("the prompt is a conversation without messages");
  }
  request.stop = std::move(stop);
  request.options = request_of({}, options);
  LanguageModel& model = self.use();
  Result<TextStream> stream = [&] {
    const WithoutGil without_gil;
    return model.generate(std::move(request));
  }();
  return {ProcessBound<TextStream>(value_or_raise(std::move(stream)))};
}

}  // namespace

void bind_language_model(nb::module_& module) {
  bind_requests(module);
  bind_generation_queue(module);
  bind_stream(module);
  nb::class_<ModelHandle>(module, "LanguageModel", nb::is_weak_referenceable(),
                          R"(A language model on all ranks of an engine.

Rank 0 takes requests, and the other ranks follow. Created by LanguageModel.create(). Thread-safe. On rank 0, the
model stops when its last handle is gone and no stream is in progress.)")
      .def_static("create", &create_model, nb::arg("engine"), nb::kw_only(), nb::arg("cache_tokens") = 0,
                  nb::arg("block_tokens") = 0, nb::arg("cache_dtype") = "float32", nb::arg("max_sequences") = 64,
                  nb::arg("max_rows") = 512, nb::arg("all_ranks").none() = nb::none(),
                  nb::sig("def create(engine: Engine, *, cache_tokens: int = 0, block_tokens: int = 0, "
                          "cache_dtype: str = 'float32', max_sequences: int = 64, max_rows: int = 512, "
                          "all_ranks: Communicator | None = None) -> LanguageModel"),
                  R"(Creates the cache and, on rank 0, the thread that runs the model.

cache_tokens: capacity of the cache in tokens, for all sequences together; 0: one full context.
block_tokens: tokens of a block of the cache, a multiple of 16, in which equal prefixes are reused; 0: 16, or up to 256
for a model whose layers keep a state.
cache_dtype: "float32", "bfloat16" or "int8".
max_sequences, max_rows: maximum number of sequences and of tokens that one step computes; longer prompts take several
steps.
all_ranks: connects all ranks of an engine that is bound to several groups.

Collective over the engine's groups, and agreed: if one rank cannot, every rank gets its error. Raises Unsupported if
the package is not a language model, InvalidArgument for invalid options, ResourceExhausted.)")
      .def(
          "submit",
          [](ModelHandle& self, nb::handle prompt, const nb::kwargs& options) {
            GenerationRequest request = request_of(prompt_of(prompt), options);
            return StreamHandle{ProcessBound<GenerationStream>(value_or_raise(self.use().submit(std::move(request))))};
          },
          nb::arg("prompt"), nb::arg("options"),
          nb::sig("def submit(self, prompt: collections.abc.Sequence[int], **options: typing.Any) -> GenerationStream"),
          R"(Continues a prompt and returns the events as they arrive. For rank 0.

prompt: token ids, as a list or as an array or tensor of one dimension. For a model with an encoder, the beginning of
the answer; if it is empty, the package's start tokens.
source: for a model with an encoder, its input: token ids, an array or tensor without a batch dimension, or a list of
arrays if it takes several. For a model that reads images, their pixels; the prompt has the source_token as often as the
encoder makes rows of them.

Options: max_new_tokens, temperature (0: the best token), top_k, top_p, min_p, repetition_penalty, presence_penalty,
frequency_penalty, biases (token -> number that is added to its logit), seed, stop_tokens, stop_sequences, samples,
logprobs (how many of the best tokens to return), mask (a callable: (sample, tokens so far) -> bytes in which bit t % 8
of byte t // 8 allows token t, called by another thread), priority, adapter (a name among adapters); and to resume a sample of an earlier request,
first_sample (its index) and generated (how many of its tokens end the prompt). Equal seeds give equal tokens, whatever
else is in the batch and on any number of ranks.

Raises InvalidArgument, which names the invalid option, and ResourceExhausted if too many requests are waiting.)")
      .def("generate", &generate, nb::arg("prompt"), nb::kw_only(), nb::arg("stop") = std::vector<std::string>(),
           nb::arg("options"),
           nb::sig("def generate(self, prompt: str | collections.abc.Sequence[collections.abc.Mapping[str, str]], *, "
                   "stop: collections.abc.Sequence[str] = (), **options: typing.Any) -> TextStream"),
           R"(Continues a text or answers a conversation, and returns the text as it arrives. For rank 0.

prompt: a text, or messages: [{"role": "user", "content": "Hello"}]. For a model with an encoder, the text that the
encoder reads, unless source= is given: then the beginning of the answer. For a model that reads images, an image token
may stand for each image of source=.
stop: texts that end an answer and are not part of it.

Options: those of submit() except logprobs, and start_tokens: for a model with an encoder, the tokens that the answer
begins with, instead of the package's. The package's stop tokens also end an answer. Raises as submit() does, and
NotFound if the package has no tokenizer, or no chat format for messages.)")
      .def(
          "queue",
          [](ModelHandle& self) {
            return QueueHandle{ProcessBound<GenerationQueue>(value_or_raise(GenerationQueue::create(self.use())))};
          },
          "Creates a queue for the events of many requests. For rank 0.")
      .def(
          "follow",
          [](ModelHandle& self) {
            raise_if_error(run_interruptibly([model = self.use()]() mutable { return model.follow(); }));
          },
          "For the other ranks: computes what rank 0 decides, until rank 0 stops. Raises the failure if something "
          "fails on any rank.")
      .def(
          "stop",
          [](ModelHandle& self) {
            LanguageModel model = self.use();
            raise_if_error(run_interruptibly([model]() mutable { return model.stop(); }));
          },
          "For rank 0: ends all requests and the follow() calls of the other ranks.")
      .def_prop_ro(
          "error", [](ModelHandle& self) { return exception_for(self.use().status()); },
          "For rank 0: the failure that ended the model, or Closed after stop(); None while it runs.")
      .def_prop_ro(
          "stats", [](ModelHandle& self) { return value_or_raise(self.use().stats()); },
          "For rank 0: a GenerationStats as of the last step.")
      .def_prop_ro(
          "leads", [](ModelHandle& self) { return self.use().leads(); },
          "Whether this is rank 0, which takes requests; other ranks follow.")
      .def_prop_ro(
          "max_context", [](ModelHandle& self) { return self.use().max_context(); },
          "Maximum number of tokens of one sequence, prompt and answer together.")
      .def_prop_ro(
          "vocabulary", [](ModelHandle& self) { return self.use().vocabulary(); },
          "The number of tokens in the vocabulary.")
      .def_prop_ro(
          "stop_tokens", [](ModelHandle& self) { return std::vector<TokenId>(self.use().stop_tokens()); },
          "The tokens that end a text, as listed in the package.")
      .def_prop_ro(
          "has_encoder", [](ModelHandle& self) { return self.use().has_encoder(); },
          "Whether each request has a source that all tokens attend to.")
      .def_prop_ro(
          "source_token", [](ModelHandle& self) { return self.use().source_token(); },
          "The token of prompts that stands for a row of the source, which an encoder of images makes; None for other "
          "models.")
      .def_prop_ro(
          "max_source", [](ModelHandle& self) { return self.use().max_source(); },
          "Rows of the longest source, such as its tokens; 0 without an encoder.")
      .def_prop_ro(
          "start_tokens", [](ModelHandle& self) { return std::vector<TokenId>(self.use().start_tokens()); },
          "The tokens that an answer begins with, as listed in the package; none without an encoder.")
      .def_prop_ro(
          "adapters", [](ModelHandle& self) { return std::vector<std::string>(self.use().adapters()); },
          "The names of the adapters in the package, which requests may choose.")
      .def_prop_ro(
          "cache_bytes", [](ModelHandle& self) { return self.use().cache_bytes(); },
          "Bytes of the cache; bytes that were never written use no memory.")
      .def_prop_ro(
          "tokenizer_json", [](ModelHandle& self) { return std::optional<std::string>(self.use().tokenizer_json()); },
          "The package's tokenizer.json; None if it has none.")
      .def_prop_ro(
          "tokenizer", [](ModelHandle& self) { return value_or_raise(self.use().tokenizer()); },
          "The package's tokenizer. Raises NotFound if it has none.")
      .def_prop_ro(
          "chat_format", [](ModelHandle& self) { return value_or_raise(self.use().chat_format()); },
          "The package's chat format. Raises NotFound if it has none, and Unsupported if its chat template does not "
          "have table form.");
}

}  // namespace accord::python
