#include "text/answer_finder.h"

#include <algorithm>
#include <utility>

namespace longshore {
namespace {

// This caps the bytes of all prefixes of one conversation that are rendered: a few seconds.
constexpr size_t kMaxBeginnings = size_t{256} << 20;

std::string place_of_message(size_t index) {
  return "messages[" + std::to_string(index) + "]: ";
}

constexpr const char* kWayOut =
    "; give it the weight 0, set data.mask to \"all\", or mark the answers in a copy of the "
    "template with {% generation %} and {% endgeneration %} (data.chat_template)";

Json first_messages(const Json& messages, size_t count) {
  Json first = Json::array();
  for (size_t i = 0; i < count; ++i) first.push_back(messages[i]);
  return first;
}

// Returns the text that closes a thought if the prompt opens one and `written` does not close it:
// the thought (it may be empty) and the end mark. Otherwise the result is empty.
std::string thought_to_close(std::string_view question_end, std::string_view written,
                             std::string_view thought) {
  const size_t open = question_end.rfind(kOpenThought);
  if (open == std::string_view::npos) return {};
  if (question_end.substr(open).find(kCloseThought) != std::string_view::npos) return {};
  if (written.find(kCloseThought) != std::string_view::npos) return {};
  const std::string lead = question_end.ends_with('\n') ? "" : "\n";
  return lead + std::string(thought) + "\n" + std::string(kCloseThought) + "\n\n";
}

// Returns true if the prompt ends with the end of a thought, so the answer cannot have one.
bool closes_thought(std::string_view question) {
  const size_t end = question.find_last_not_of(" \t\r\n");
  return question.substr(0, end == std::string_view::npos ? 0 : end + 1).ends_with(kCloseThought);
}

bool is_part_of(const PartMark& mark, size_t message) {
  return mark.name.message == message && mark.name.part != ChatPart::kTool;
}

// Returns the first mark of a message, or marks.end() if the template writes no part of it.
auto first_mark_of(const std::vector<PartMark>& marks, size_t message) {
  return std::ranges::find_if(marks, [&](const PartMark& m) { return is_part_of(m, message); });
}

}  // namespace

AnswerFinder::AnswerFinder(const ChatTemplate* chat, std::string_view eos, Json messages,
                           std::string text, const ChatVariables* variables)
    : chat_(chat),
      eos_(eos),
      messages_(std::move(messages)),
      variables_(variables),
      text_(std::move(text)),
      parts_(parts_of(messages_, variables->tools)) {}

bool AnswerFinder::is_assistant(size_t message) const {
  return message < messages_.size() && longshore::is_assistant(messages_[message]);
}

std::string AnswerFinder::render(const Json& messages, bool asking) {
  ChatVariables variables = *variables_;
  variables.add_generation_prompt = asking;
  std::string text = chat_->render(messages, variables).text;
  // Rendering one message costs about as much time as 250 bytes of text, even if it is empty.
  rendered_ += text.size() + 250 * messages.size();
  if (rendered_ > kMaxBeginnings) {
    throw ChatProblem(
        "messages: too many answers in so long a conversation: the time to find them in its "
        "growing beginnings grows with the square of their number; mark the answers in the "
        "template with {% generation %} and {% endgeneration %}, or break the conversation up");
  }
  return text;
}

std::string AnswerFinder::render_first(size_t count, bool asking) {
  return render(first_messages(messages_, count), asking);
}

// Some templates end every text with the opening of an answer. It is no part of the last answer.
void AnswerFinder::without_opening(std::string& text) const {
  const std::string& opening = chat_->unasked_opening();
  if (text.ends_with(opening)) text.resize(text.size() - opening.size());
}

// Returns the rendering of the messages up to and including the answer.
std::string AnswerFinder::text_with(size_t answer) {
  std::string text = render_first(answer + 1, false);
  without_opening(text);
  return text;
}

// Some templates append eos to every rendering, so a longer text does not have it at this offset.
std::string_view AnswerFinder::open_end(std::string_view text, std::string_view longer) const {
  if (!longer.starts_with(text) && !eos_.empty() && text.ends_with(eos_)) {
    text.remove_suffix(eos_.size());
  }
  return text;
}

// Some templates refuse marks outside of the assistant's messages.
std::optional<AnswerFinder::Located> AnswerFinder::locate(size_t count, bool asking,
                                                          std::string_view text) {
  ChatVariables variables = *variables_;
  variables.add_generation_prompt = asking;
  const Json messages = first_messages(messages_, count);
  for (const MarkedRoles roles : {MarkedRoles::kAll, MarkedRoles::kAssistant}) {
    auto marks = find_parts(*chat_, messages, variables, text, chat_->unasked_opening(), roles);
    if (marks) return Located{*std::move(marks), roles};
  }
  return std::nullopt;
}

// Returns an empty list if the marks cannot be located.
std::vector<PartMark> AnswerFinder::marks_of(size_t count, bool asking, std::string_view text) {
  std::optional<Located> located = locate(count, asking, text);
  return located ? std::move(located->marks) : std::vector<PartMark>();
}

ChatSample AnswerFinder::answered(size_t answer) {
  std::string after = answer + 1 == messages_.size() ? text_ : render_first(answer + 1, false);
  without_opening(after);
  std::string asked;
  try {
    asked = render_first(answer, true);
  } catch (const ChatProblem&) {
    // The template refuses this prompt, for example because the answer is the first message.
    return unasked(answer, std::move(after));
  }
  const auto behind = [&](std::string text) {
    const TextSpan span{open_end(asked, text).size(), text.size()};
    return ChatSample{std::move(text), {{span, answer}}, answer + 1};
  };
  const bool thoughtful_answer = !thought_of(messages_[answer]).empty();
  // A thought cannot follow a prompt that closes it, even if the template writes it there.
  const bool misplaced = thoughtful_answer && closes_thought(asked);
  if (!misplaced && after.starts_with(open_end(asked, after))) return behind(std::move(after));
  if (thoughtful_answer) {
    Json thoughtful = std::exchange(messages_[answer], without_thought(messages_[answer]));
    std::string silent = text_with(answer);
    if (silent.starts_with(open_end(asked, silent))) {
      text_ = render(messages_, false);
      return behind(std::move(silent));
    }
    messages_[answer] = std::move(thoughtful);
  }
  if (answer == 0) return unasked(answer, std::move(after));
  return composed(answer, asked, std::move(after));
}

// If the template has no prompt for an answer, the answer begins with its content.
ChatSample AnswerFinder::unasked(size_t answer, std::string after) {
  const std::vector<PartMark> marks = marks_of(answer + 1, false, after);
  const auto first = first_mark_of(marks, answer);
  if (first == marks.end() || first->name.part != ChatPart::kContent || first->end) {
    throw AnswerProblem(place_of_message(answer) +
                        "the chat template does not ask for this answer, so that its beginning "
                        "cannot be found" +
                        kWayOut);
  }
  const TextSpan span{first->at, after.size()};
  return {std::move(after), {{span, answer}}, answer + 1};
}

// The prompt differs from the text that the template writes before this answer. For example, the
// prompt ends with <think>, or an earlier answer is written in another form. The sample is the
// prompt followed by the answer's own rendering.
ChatSample AnswerFinder::composed(size_t answer, std::string_view asked, std::string after) {
  const std::string thought(thought_of(messages_[answer]));
  const std::string_view before = open_end(asked, after);
  const Question question = question_of(answer, asked, before);
  std::vector<PartMark> marks = marks_of(answer + 1, false, after);
  std::optional<Place> place = place_of(answer, question, after, marks);
  Json thoughtful;
  if (!place && !thought.empty()) {
    thoughtful = std::exchange(messages_[answer], without_thought(messages_[answer]));
    after = text_with(answer);
    marks = marks_of(answer + 1, false, after);
    place = place_of(answer, question, after, marks);
  }
  if (!place) place = place_by_probe(answer, question, after);
  if (!place) {
    throw AnswerProblem(place_of_message(answer) +
                        "the chat template asks for this answer with other words than it puts "
                        "before it, and where it begins cannot be found" +
                        kWayOut);
  }
  const ChatSample alone{after, {{{place->from, after.size()}, answer}}, answer + 1};
  marks.empty() ? check_without_marks(alone) : check_marks(alone, marks, true);
  const std::string_view written = std::string_view(after).substr(place->from);
  const std::string closing = thought_to_close(place->unwritten, written, thought);
  if (!closing.empty() && !thought.empty()) {
    written_.insert({answer, ChatPart::kThought, 0});
    if (!thoughtful.is_null()) messages_[answer] = std::move(thoughtful);
  } else if (!thoughtful.is_null()) {
    text_ = render(messages_, false);
  }
  ChatSample sample{std::string(before) + closing, {}, answer + 1, true};
  // The closing text already has the line breaks between the thought and the answer.
  const size_t lines = closing.empty() ? 0 : written.find_first_not_of('\n');
  sample.text += written.substr(std::min(lines, written.size()));
  sample.spans.push_back({{before.size(), sample.text.size()}, answer});
  return sample;
}

AnswerFinder::Question AnswerFinder::question_of(size_t answer, std::string_view asked,
                                                 std::string_view before) {
  Question question{.text = before, .tail = before, .last = {}};
  const std::vector<PartMark> marks = marks_of(answer, true, asked);
  for (const PartMark& mark : marks) written_.insert(mark.name);
  if (!marks.empty() && marks.back().at <= before.size()) {
    question.last = marks.back();
    question.tail = before.substr(marks.back().at);
  }
  return question;
}

// Returns the text that the template adds to ask for the answer; empty if it is unknown.
std::string_view AnswerFinder::opening_of(size_t answer, const Question& question) {
  try {
    const std::string read = render_first(answer, false);
    const std::string_view base = open_end(read, question.text);
    if (question.text.starts_with(base)) return question.text.substr(base.size());
  } catch (const ChatProblem&) {
    // Some templates refuse a conversation without a final answer.
  }
  return {};
}

// Blanks before a content's mark come from the content or from the template. They belong to the
// content if the rendering loses them when the content does.
size_t AnswerFinder::begin_of_content(size_t answer, const PartMark& mark, std::string_view after) {
  Json messages = first_messages(messages_, answer + 1);
  const std::string blanks = drop_blanks_before(messages, mark.name);
  if (blanks.empty() || !after.substr(0, mark.at).ends_with(blanks)) return mark.at;
  std::string bare = render(messages, false);
  without_opening(bare);
  const size_t begin = mark.at - blanks.size();
  const bool lost = bare.size() + blanks.size() == after.size() &&
                    bare.starts_with(after.substr(0, begin)) &&
                    bare.ends_with(after.substr(mark.at));
  return lost ? begin : mark.at;
}

// If both texts have the prompt's last message part, the text after it is compared: the answer's
// text must contain the prompt's tail there, or its beginning up to the content.
std::optional<AnswerFinder::Place> AnswerFinder::place_of(size_t answer, const Question& question,
                                                          std::string_view after,
                                                          const std::vector<PartMark>& marks) {
  const auto first = first_mark_of(marks, answer);
  if (first == marks.end()) return std::nullopt;
  const bool content = first->name.part == ChatPart::kContent && !first->end;
  const size_t end = content ? begin_of_content(answer, *first, after) : first->at;
  const bool has_before = first != marks.begin();
  const bool same = has_before == question.last.has_value() &&
                    (!has_before || (std::prev(first)->name == question.last->name &&
                                     std::prev(first)->end == question.last->end));
  if (same) {
    const size_t begin = has_before ? std::prev(first)->at : 0;
    const std::string_view region = after.substr(begin, end - begin);
    if (region.starts_with(question.tail)) return Place{begin + question.tail.size(), {}};
    if (content && question.tail.starts_with(region)) {
      return Place{end, question.tail.substr(region.size())};
    }
  }
  if (!content) return std::nullopt;
  // The content follows the opening or a leading part of it.
  const std::string_view opening = opening_of(answer, question);
  for (size_t count = opening.size(); count > 0; --count) {
    const bool behind = after.substr(0, end).ends_with(opening.substr(0, count));
    if (behind) return Place{end, opening.substr(count)};
  }
  return Place{end, question.tail};
}

// If an answer does not begin with a content, it is replaced by a probe that does. The probe's
// offset is valid if the text before it does not depend on the answer.
std::optional<AnswerFinder::Place> AnswerFinder::place_by_probe(size_t answer,
                                                                const Question& question,
                                                                std::string_view after) {
  Json real = std::exchange(messages_[answer], {{"role", "assistant"}, {"content", "wherefore"}});
  std::optional<Place> place;
  try {
    const std::string probe = text_with(answer);
    place = place_of(answer, question, probe, marks_of(answer + 1, false, probe));
    const bool same =
        place && after.size() >= place->from &&
        after.substr(0, place->from) == std::string_view(probe).substr(0, place->from);
    if (!same) place.reset();
  } catch (const ChatProblem&) {
    // The template refuses the probe, so the offset stays unknown.
  }
  messages_[answer] = std::move(real);
  return place;
}

bool AnswerFinder::extend(ChatSample& run, ChatSample& next) {
  const size_t kept = open_end(run.text, next.text).size();
  if (next.text.compare(0, kept, run.text, 0, kept) != 0) return false;
  if (!next.spans.empty() && next.spans.front().text.begin < kept) return false;
  // For a composed text only the last answer is checked.
  if (next.composed && !run.composed) check(run, true);
  run.spans.back().text.end = std::min(run.spans.back().text.end, kept);
  run.text = std::move(next.text);
  run.spans.insert(run.spans.end(), next.spans.begin(), next.spans.end());
  run.messages = next.messages;
  run.composed = next.composed;
  return true;
}

std::vector<ChatSample> AnswerFinder::find(const std::vector<size_t>& answers) {
  std::vector<ChatSample> samples;
  for (const size_t answer : answers) {
    ChatSample next = answered(answer);
    if (samples.empty() || !extend(samples.back(), next)) samples.push_back(std::move(next));
  }
  // The text after the last answer is context and is not trained.
  ChatSample whole{text_, {}, messages_.size()};
  if (samples.empty()) {
    samples.push_back(std::move(whole));
  } else {
    extend(samples.back(), whole);
  }
  for (const ChatSample& sample : samples) {
    if (!sample.composed) check(sample, true);
  }
  return samples;
}

ChatSample AnswerFinder::generated(std::vector<AnswerSpan> spans) {
  ChatSample sample{text_, std::move(spans), messages_.size()};
  check(sample, false);
  return sample;
}

ChatSample AnswerFinder::undivided() {
  ChatSample sample{text_, {}, messages_.size()};
  check(sample, false);
  sample.spans.push_back({{0, sample.text.size()}, AnswerSpan::kAnyAnswer});
  return sample;
}

// If `whole` is set, each part of an answer that the template writes must be in the answer's span.
void AnswerFinder::check(const ChatSample& sample, bool whole) {
  const std::optional<Located> located =
      locate(sample.messages, variables_->add_generation_prompt, sample.text);
  if (located) {
    if (located->roles != MarkedRoles::kAll) all_known_ = false;
    return check_marks(sample, located->marks, whole);
  }
  all_known_ = answers_known_ = false;
  if (whole) check_without_marks(sample);
}

void AnswerFinder::check_marks(const ChatSample& sample, const std::vector<PartMark>& marks,
                               bool whole) {
  const Parts parts = parts_in(sample, marks);
  for (const auto& [name, seen] : parts) written_.insert(name);
  if (!whole) return;
  for (const AnswerSpan& span : sample.spans) {
    for (auto part = parts.lower_bound({span.message, ChatPart::kContent, 0});
         part != parts.end() && part->first.message == span.message; ++part) {
      const Seen& seen = part->second;
      const bool trained = seen.whole || (!seen.begin && seen.ends) || (!seen.end && seen.begins);
      if (trained || part->first.part == ChatPart::kTool) continue;
      throw AnswerProblem(place_of_message(span.message) +
                          "the chat template writes a part of this answer where it cannot be "
                          "trained" +
                          kWayOut);
    }
  }
}

// A template that does not parse thoughts in contents may write an empty thought before such a
// content. `ahead` is the offset of the preceding mark.
void AnswerFinder::require_open_thought(const ChatSample& sample, const PartMark& mark,
                                        size_t ahead) const {
  if (mark.end || mark.name.part != ChatPart::kThought) return;
  const std::string_view between = std::string_view(sample.text).substr(ahead, mark.at - ahead);
  if (between.find(kCloseThought) == std::string_view::npos) return;
  throw AnswerProblem(place_of_message(mark.name.message) +
                      "the chat template closes a thought before it writes the thought of this "
                      "answer; give the thought in reasoning_content, or leave it out");
}

AnswerFinder::Parts AnswerFinder::parts_in(const ChatSample& sample,
                                           const std::vector<PartMark>& marks) const {
  Parts parts;
  // `ahead` is a part that begins before the span, because the prompt already has its first words.
  PartName ahead{AnswerSpan::kAnyAnswer, ChatPart::kContent, 0};
  size_t next = 0, last_at = 0;
  for (const PartMark& mark : marks) {
    const size_t ahead_at = std::exchange(last_at, mark.at);
    const auto passed = [&](size_t at) { return mark.end ? mark.at > at : mark.at >= at; };
    while (next < sample.spans.size() && passed(sample.spans[next].text.end)) ++next;
    Seen& seen = parts[mark.name];
    (mark.end ? seen.end : seen.begin) = true;
    if (ahead.message != mark.name.message) ahead.message = AnswerSpan::kAnyAnswer;
    if (next == sample.spans.size() || !passed(sample.spans[next].text.begin)) {
      if (!mark.end) ahead = mark.name;
      continue;
    }
    const size_t owner = sample.spans[next].message;
    const bool own =
        owner == AnswerSpan::kAnyAnswer ? is_assistant(mark.name.message) : is_part_of(mark, owner);
    if (!own || mark.name.part == ChatPart::kTool) {
      throw AnswerProblem(place_of_message(mark.name.message) +
                          "the chat template writes a part of this message among the words of an "
                          "answer, which would be trained" +
                          kWayOut);
    }
    require_open_thought(sample, mark, ahead_at);
    if (mark.end) {
      seen.ends = true;
      seen.whole = seen.whole || (seen.begins && seen.span == next) || ahead == mark.name;
    } else {
      seen.begins = true;
      seen.span = next;
    }
  }
  return parts;
}

// This check is used if the template writes a different text when marks are present: the words of
// each answer must occur in its span.
void AnswerFinder::check_without_marks(const ChatSample& sample) const {
  for (const AnswerSpan& span : sample.spans) {
    const std::string words = words_of(messages_[span.message]);
    const size_t size = std::min(span.text.end, sample.text.size()) - span.text.begin;
    if (sample.text.substr(span.text.begin, size).find(words) != std::string::npos) continue;
    throw AnswerProblem(place_of_message(span.message) +
                        "the chat template changes the words of this answer by what is in them, so "
                        "that nobody can say whether all of it is trained" +
                        kWayOut);
  }
}

ChatNotes AnswerFinder::notes(const std::vector<size_t>& answers) const {
  ChatNotes notes;
  std::set<size_t> written, unwritten;
  for (const PartName& name : written_) {
    if (name.part == ChatPart::kContent || name.part == ChatPart::kCall) {
      written.insert(name.message);
    }
  }
  for (const PartName& name : parts_) {
    if (written_.contains(name)) continue;
    // Text after the last trained answer affects no loss, so no sample needs it.
    const bool follows = !answers.empty() && name.message > answers.back();
    if (follows && name.part != ChatPart::kTool) continue;
    const bool assistant = name.part != ChatPart::kTool && is_assistant(name.message);
    if (assistant ? !answers_known_ : !all_known_) continue;
    const bool said = name.part == ChatPart::kContent || name.part == ChatPart::kCall;
    if (assistant && said) unwritten.insert(name.message);
    if (name.part == ChatPart::kTool) {
      ++notes.tools;
    } else if (name.part == ChatPart::kCall) {
      ++notes.calls;
    } else if (name.part == ChatPart::kThought) {
      notes.thoughts += std::ranges::count(answers, name.message);
    } else if (assistant || messages_[name.message].value("role", Json()) == "user") {
      ++notes.texts;
    } else {
      ++notes.instructions;
    }
  }
  for (const size_t answer : answers) {
    if (!written.contains(answer) && unwritten.contains(answer)) notes.emptied.push_back(answer);
  }
  return notes;
}

}  // namespace longshore
