// Answers messages from standard input, one per line, with a language model on all ranks:
//   accord run -n 2 build/release/examples/chat smollm2.accord
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/language_model.hpp"

namespace {

constexpr auto kPatience = std::chrono::minutes(5);

int fail(const accord::Status& status) {
  std::cerr << status.to_string() << std::endl;
  return 1;
}

// Sends a request and prints the answer as it is generated.
accord::Result<std::string> answer(accord::LanguageModel& model, const std::vector<accord::ChatMessage>& conversation) {
  accord::TextRequest request;
  request.messages = conversation;
  request.options.max_new_tokens = 100;
  accord::Result<accord::TextStream> stream = model.generate(std::move(request));
  if (!stream.ok()) return stream.status();
  std::string text;
  for (;;) {
    const auto event = stream->next(kPatience);
    if (!event.ok()) return event.status();
    if (!*event) break;
    if (!(*event)->status.ok()) return (*event)->status;
    std::cout << (*event)->text << std::flush;
    text += (*event)->text;
  }
  std::cout << std::endl;
  return text;
}

// Reports and discards a message that cannot be answered. An error that ends the model ends the conversation.
int converse(accord::LanguageModel& model) {
  std::vector<accord::ChatMessage> conversation;
  for (std::string line; std::getline(std::cin, line);) {
    conversation.push_back({"user", line});
    const accord::Result<std::string> reply = answer(model, conversation);
    if (reply.ok()) {
      conversation.push_back({"assistant", *reply});
      continue;
    }
    conversation.pop_back();
    const bool bad_request = reply.status().code() == accord::StatusCode::kInvalidArgument ||
                             reply.status().code() == accord::StatusCode::kResourceExhausted;
    if (!bad_request) return fail(reply.status());
    std::cerr << "not answered: " << reply.status().message() << std::endl;
  }
  const accord::Status stopped = model.stop();
  return stopped.ok() ? 0 : fail(stopped);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fail({accord::StatusCode::kInvalidArgument, "usage: chat PACKAGE"});
  const auto comm = accord::Communicator::from_environment();
  if (!comm.ok()) return fail(comm.status());
  const auto engine = accord::Engine::load_and_bind(argv[1], {{"tp", *comm}});
  if (!engine.ok()) return fail(engine.status());
  auto model = accord::LanguageModel::create(*engine);
  if (!model.ok()) return fail(model.status());
  if (model->leads()) return converse(*model);
  const accord::Status followed = model->follow();
  return followed.ok() ? 0 : fail(followed);
}
