#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/standard_streams.h"
#include "apps/essh/terminal.h"
#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/base/utf8.h"
#include "essh/chat/conversation.h"
#include "essh/chat/line_editor.h"
#include "essh/model/cost.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"
#include "essh/text/utf8.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct ChatOptions {
  std::string model, tier = "full", draft, system, tokenizer, chat = "auto";
  chat::ConversationOptions conversation;
  DeviceOptions device;
  bool bytes = false, force = false;
};

constexpr const char* kHelp =
    "/tier T4       answer with another capacity from now on: T4, full, xi=0.3 or 18x1792\n"
    "/tiers         what there is\n"
    "/system TEXT   start over with this system message; without TEXT, with none\n"
    "/reset         start over\n"
    "/save FILE     write the conversation as JSON\n"
    "/help          this text\n"
    "/quit          end, as Ctrl-D does; Ctrl-C stops an answer\n";

volatile std::sig_atomic_t stop_requested = 0;

// During its lifetime, SIGINT stops the answer.
class StopScope {
 public:
  StopScope() {
    struct sigaction action {};
    action.sa_handler = [](int) { stop_requested = 1; };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, &before_);
  }
  ~StopScope() { ::sigaction(SIGINT, &before_, nullptr); }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  struct sigaction before_ {};
};

class Chat {
 public:
  Chat(const ChatOptions& o, fs::path folder, Engine& engine, const Tokenizer& tokenizer)
      : folder_(std::move(folder)),
        engine_(engine),
        template_(chat::find_template(o.chat, folder_, tokenizer)),
        conversation_(engine, tokenizer, template_, find_tier(folder_, engine.config(), o.tier), o.conversation) {
    if (!o.system.empty()) conversation_.set_system(o.system);
    if (Terminal::present()) {
      terminal_ = std::make_unique<Terminal>();
      history_ = chat::History(chat::history_file());
    }
    const char* const plain = std::getenv("NO_COLOR");
    colours_ = terminal_ && !(plain && *plain);
  }

  void run() {
    // On a terminal, Ctrl-C is a key at the prompt and a signal afterwards. There must be no moment in which the signal
    // ends the program.
    std::optional<StopScope> scope;
    if (terminal_) {
      scope.emplace();
      note(fmt::format("{}, tier {}. /help lists the commands, Ctrl-D ends.", folder_.string(),
                       conversation_.tier().name));
    }
    if (!template_) note("This model has no chat template: it continues what you write, as one text.");
    while (const auto line = read()) {
      const auto first = line->find_first_not_of(" \t\r\n");
      if (first == std::string::npos) continue;
      if ((*line)[first] != '/') {
        answer(*line);
      } else if (!command(line->substr(first))) {
        break;
      }
    }
  }

 private:
  // Text outside the conversation: on a terminal inline, otherwise to standard error.
  void note(const std::string& text) {
    if (!terminal_) return log::info("{}", text);
    terminal_->write(fmt::format("{}{}{}\n", colours_ ? "\x1b[2m" : "", text, colours_ ? "\x1b[0m" : ""));
  }

  std::optional<std::string> read() {
    stop_requested = 0;
    if (!terminal_) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      if (line.ends_with('\r')) line.pop_back();
      return to_valid_utf8(line);
    }
    chat::LineEditor editor("> ", history_);
    terminal_->read_keys();
    terminal_->write(editor.draw(terminal_->columns()));
    for (;;) {
      const auto byte = terminal_->byte();
      const auto event = byte ? editor.key(*byte) : chat::LineEditor::Event::End;
      if (event == chat::LineEditor::Event::None) {
        // Draws a paste once.
        if (!terminal_->waiting()) terminal_->write(editor.draw(terminal_->columns()));
        continue;
      }
      // Bytes that came together with the end of the line are not drawn yet.
      if (event == chat::LineEditor::Event::Line) terminal_->write(editor.draw(terminal_->columns()));
      terminal_->write("\n");
      if (event == chat::LineEditor::Event::Cancelled) {
        terminal_->write(editor.draw(terminal_->columns()));
        continue;
      }
      terminal_->watch();
      if (event == chat::LineEditor::Event::End) return std::nullopt;
      auto line = editor.take();
      history_.add(line);
      return line;
    }
  }

  void answer(const std::string& message) {
    const auto turn = conversation_.say(
        message, [&](const std::string& piece) { write_standard_output(terminal_ ? harmless(piece) : piece); },
        [] { return stop_requested != 0; });
    if (!turn.text.ends_with('\n')) write_standard_output("\n");
    auto facts = fmt::format("{}: ", conversation_.tier().name);
    if (turn.drawn > 1 && turn.seconds > 0)
      facts += fmt::format("{:.1f} tokens/s, ", static_cast<double>(turn.drawn - 1) / turn.seconds);
    if (turn.drawn > 0) facts += fmt::format("first after {:.0f} ms, ", 1000 * turn.first_seconds);
    facts += fmt::format("{} tokens read, {} drawn", turn.read, turn.drawn);
    if (turn.ending == chat::Ending::Stopped) facts += ", stopped";
    if (turn.ending == chat::Ending::Length) facts += ", cut at --max-tokens";
    if (terminal_)
      note(facts);
    else
      log::detail("{}", facts);
  }

  // False ends the program.
  bool command(const std::string& line) {
    const auto space = line.find_first_of(" \t");
    const auto name = line.substr(0, space);
    const auto start = space == std::string::npos ? space : line.find_first_not_of(" \t", space);
    const auto rest =
        start == std::string::npos ? std::string() : line.substr(start, line.find_last_not_of(" \t\r\n") - start + 1);
    try {
      if (name == "/quit" || name == "/exit") return false;
      if (name == "/help") {
        say_lines(kHelp);
      } else if (name == "/tiers") {
        list_tiers();
      } else if (name == "/tier" && !rest.empty()) {
        conversation_.set_tier(find_tier(folder_, engine_.config(), rest));
        note(fmt::format("tier {} answers from now on", rest));
      } else if (name == "/tier") {
        note(fmt::format("tier {}; /tier T4 takes another, /tiers lists them", conversation_.tier().name));
      } else if (name == "/system") {
        conversation_.set_system(rest);
        note(rest.empty() ? "started over without a system message" : "started over with this system message");
      } else if (name == "/reset") {
        conversation_.reset();
        note("started over");
      } else if (name == "/save" && !rest.empty()) {
        save(rest);
      } else if (name == "/save") {
        note("/save needs a file: /save conversation.json");
      } else {
        note(fmt::format("there is no command {}; /help lists them", in_quotes(name)));
      }
    } catch (const Error& error) {
      // A mistake in a command does not end the conversation.
      note(error.what());
    } catch (const fs::filesystem_error& error) {
      note(error.what());
    }
    return true;
  }

  void say_lines(const std::string& text) { write_standard_output(text); }

  void list_tiers() {
    std::string text;
    for (const auto& tier : tiers_of(engine_.config())) {
      const auto cost = cost_of(engine_.config(), tier.capacity);
      text += fmt::format("{} {:<5} {:>8} parameters, state {}\n", tier.name == conversation_.tier().name ? '*' : ' ',
                          tier.name, format_count(static_cast<double>(cost.parameters)),
                          format_bytes(static_cast<double>(cost.state_bytes)));
    }
    say_lines(text);
  }

  void save(const std::string& file) {
    Json messages = Json::array();
    for (const auto& message : conversation_.messages())
      messages.push_back({{"role", message.role}, {"content", message.content}});
    const Json document = {
        {"model", folder_.string()}, {"tier", conversation_.tier().name}, {"messages", std::move(messages)}};
    write_durably(file, to_text(document, 2) + "\n");
    note(fmt::format("{}: {} messages", file, conversation_.messages().size()));
  }

  fs::path folder_;
  Engine& engine_;
  std::optional<serve::ChatTemplate> template_;
  chat::Conversation conversation_;
  std::unique_ptr<Terminal> terminal_;
  chat::History history_;
  bool colours_ = false;
};

std::unique_ptr<Tokenizer> find_tokenizer(const ChatOptions& o, const fs::path& folder) {
  if (o.bytes) return make_byte_tokenizer();
  if (!o.tokenizer.empty()) return load_tokenizer(o.tokenizer);
  if (!fs::exists(folder / "tokenizer.json"))
    fail(ErrorKind::Usage, "chat: {} has no tokenizer.json; give --tokenizer FILE or --bytes", folder.string());
  return load_tokenizer(folder);
}

void run(ChatOptions o) {
  const auto folder = model_of_run(o.model);
  OpenDevice device(o.device);
  Engine engine(StoredModel::open(folder, o.force ? NonFinite::Accept : NonFinite::Refuse), device.stream,
                o.device.engine());
  const auto tokenizer = find_tokenizer(o, folder);
  if (!o.draft.empty()) o.conversation.draft = find_tier(folder, engine.config(), o.draft);
  Chat(o, folder, engine, *tokenizer).run();
}

}  // namespace

void add_chat(Verb& app) {
  auto* verb = app.add_subcommand("chat", "a conversation in the terminal");
  auto o = std::make_shared<ChatOptions>();
  auto& sampling = o->conversation.sampling;
  sampling.temperature = 0.8;
  sampling.top_p = 0.95;
  verb->add_option("MODEL", o->model, "a model folder or a run")->required();
  verb->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792; /tier changes it")->capture_default_str();
  verb->add_option("--draft", o->draft,
                   "a smaller tier drafts tokens that the answering tier checks, several in a pass");
  add_number(*verb, "--draft-tokens", o->conversation.draft_tokens, "most tokens of a draft", 1, kMostDrafted)
      ->capture_default_str();
  verb->add_option("--system", o->system, "a system message");
  verb->add_option("--chat-template", o->chat, "auto, chatml, llama3, or none: the model continues one text")
      ->one_of({"auto", "chatml", "llama3", "none"})
      ->capture_default_str();
  add_number(*verb, "-n,--max-tokens", o->conversation.max_tokens, "most tokens of one answer", 1, 1 << 30)
      ->capture_default_str();
  add_number(*verb, "--temperature", sampling.temperature, "0 takes the most likely token", 0, 100)
      ->capture_default_str();
  add_number(*verb, "--top-k", sampling.top_k, "draw among the k most likely; 0 for all", 0, 1 << 24)
      ->capture_default_str();
  add_number(*verb, "--top-p", sampling.top_p, "draw among the most likely that together reach p", 0, 1)
      ->capture_default_str();
  add_number(*verb, "--min-p", sampling.min_p, "drop tokens less likely than this share of the most likely", 0, 1)
      ->capture_default_str();
  add_number(*verb, "--repetition-penalty", sampling.repetition_penalty,
             "divides the logits of recent tokens; 1 is off", 0.01, 100)
      ->capture_default_str();
  add_seed(*verb, sampling.seed, "same seed, same conversation");
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer.json, when the folder has none");
  verb->add_flag("--bytes", o->bytes, "tokens are raw bytes");
  o->device.add_to(*verb);
  verb->add_flag("--force", o->force, "run although weights are NaN or infinite");
  verb->footer(
      "Examples: essh chat runs/tiny --tier T4\n"
      "          essh chat models/tiny --temperature 0.5 --max-tokens 32");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
