#include "trainer/metrics/live_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "base/texts.h"
#include "model/losses/preference_loss.h"

namespace longshore {
namespace {

const StepRecord kStep = {
    .step = Step(120),
    .loss = 1.83421,
    .grad_norm = 0.71,
    .lr = 1.9e-5,
    .epoch = 0.09,
    .seconds = 1.2,
    .tokens_per_second = 2431.2,
    .stall_seconds = {{"update", 0.06}, {"h2d", 0.144}, {"gather", 0.0}},
    .bytes = {{"drive_read", 2 * kGiB}, {"h2d", kGiB}, {"file_read", kGiB}},
    .memory = {.device_peak = 23'407'349'760, .device_plan = 22 * kGiB, .host_rss = 96 * kGiB}};
const LiveRun kRun = {.total_steps = 4000,
                      .mean_loss = 1.85017,
                      .wall = "compute",
                      .host_plan_bytes = 96 * kGiB,
                      .eta_seconds = 842.0};

// Pipe: reads back what a LiveLine writes.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_.data()), 0); }
  ~Pipe() { ::close(ends_[0]); }
  int fd() const { return ends_[1]; }
  std::string text() {
    ::close(ends_[1]);
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t got; (got = ::read(ends_[0], part.data(), part.size())) > 0;) {
      text.append(part.data(), static_cast<size_t>(got));
    }
    return text;
  }

 private:
  std::array<int, 2> ends_{};
};

// A wide line shows every value.
TEST(LiveLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(format_live_line(kStep, kRun, 0, false),
            "step 120/4000  loss 1.8342  mean 1.8502  lr 1.9e-05  grad norm 0.71  2 431 tok/s  "
            "epoch 0.09  bottleneck: compute  dev 21.8/22.0 GiB  "
            "host 96.0/96.0 GiB  ETA 14:02");
}

// The line has token accuracy and entropy where the step has them.
TEST(LiveLine, ShowsTokenAccuracyAndEntropyWhereKnown) {
  StepRecord step = kStep;
  step.token_accuracy = 0.625;
  step.entropy = 1.3125;
  const std::string line = format_live_line(step, kRun, 0, false);
  EXPECT_NE(line.find("  token accuracy 62.5 %  entropy 1.31  "), std::string::npos) << line;
}

// The routers' statistics are shown if they are logged.
TEST(LiveLine, ShowsWhatRoutersChoseWhereAsked) {
  StepRecord step = kStep;
  step.aux_loss = 2.0651;
  step.router = {.load = {}, .most = 3.42, .idle = 2, .entropy = 1.718};
  const std::string line = format_live_line(step, kRun, 0, false);
  EXPECT_NE(line.find("  aux 2.0651  experts up to 3.4x, 2 idle, entropy 1.72  "),
            std::string::npos)
      << line;
}

// Goal: KTO's steps have the margin, where they know it, and the kl; a step over pairs has the
// share of pairs that are in order.
TEST(LiveLine, ShowsTheMarginAndTheKlOfPreferences) {
  const double none = std::nan("");
  StepRecord step = kStep;
  step.figures = figures_of({.margin = 0.25, .accuracy = none, .kl = 0.0125});
  EXPECT_NE(format_live_line(step, kRun, 0, false).find("  margin 0.2500  kl 0.0125  "),
            std::string::npos);
  step.figures = figures_of({.margin = none, .accuracy = none, .kl = 0.0125});
  const std::string alone = format_live_line(step, kRun, 0, false);
  EXPECT_NE(alone.find("  kl 0.0125  "), std::string::npos) << alone;
  EXPECT_EQ(alone.find("margin"), std::string::npos) << alone;
  step.figures = figures_of({.margin = 0.25, .accuracy = 0.75, .kl = none});
  const std::string pairs = format_live_line(step, kRun, 0, false);
  EXPECT_NE(pairs.find("  margin 0.2500, 75 % right  "), std::string::npos) << pairs;
  EXPECT_EQ(pairs.find("kl"), std::string::npos) << pairs;
}

// Goal: a small loss is not shown as zero.
TEST(LiveLine, ShowsTheDigitsOfSmallLosses) {
  StepRecord step = kStep;
  step.loss = 3.214e-5;
  EXPECT_NE(format_live_line(step, kRun, 0, false).find("loss 3.21e-05  mean 1.8502"),
            std::string::npos);
  EXPECT_EQ(format_loss(-0.00052), "-0.00052");
  EXPECT_EQ(format_loss(0.0), "0.0000");
  EXPECT_EQ(format_loss(0.00123), "0.0012");
}

// A line is never wider than its columns.
TEST(LiveLine, NeverGoesBeyondTheColumns) {
  for (int columns = 1; columns < 200; ++columns) {
    EXPECT_LE(format_live_line(kStep, kRun, columns, false).size(), static_cast<size_t>(columns));
  }
}

// A narrow terminal keeps step, loss and remaining time.
TEST(LiveLine, KeepsStepLossAndTimeLeftInANarrowTerminal) {
  EXPECT_EQ(format_live_line(kStep, kRun, 40, false), "step 120/4000  loss 1.8342  ETA 14:02");
  EXPECT_EQ(format_live_line(kStep, kRun, 20, false), "step 120/4000");
}

// Colour codes take no columns.
TEST(LiveLine, ColourTakesNoRoom) {
  const std::string plain = format_live_line(kStep, kRun, 60, false);
  std::string painted = format_live_line(kStep, kRun, 60, true);
  EXPECT_NE(painted, plain);
  for (const std::string code : {"\x1b[1m", "\x1b[2m", "\x1b[0m", "\x1b[33m"}) {
    for (size_t at; (at = painted.find(code)) != std::string::npos;) painted.erase(at, code.size());
  }
  EXPECT_EQ(painted, plain);
}

// On a terminal the line is redrawn in place.
TEST(LiveLine, RedrawsInPlaceOnATerminal) {
  Pipe pipe;
  {
    LiveLine line(
        {.fd = pipe.fd(), .terminal = true, .columns = 60, .rows = 5, .every_steps = 100});
    line.show({.step = Step(1), .loss = 3.0}, {.total_steps = 2});
    line.show({.step = Step(2), .loss = 2.0}, {.total_steps = 2});
  }
  const std::string text = pipe.text();
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 2);
  EXPECT_NE(text.find("\r\x1b[Kstep 2/2  loss 2.0000"), std::string::npos);
}

// The display has four lines that fit the terminal, here at three widths.
TEST(LiveDisplay, ShowsFourLinesThatFitTheTerminal) {
  const std::vector<std::string> narrow = {
      "step 120/4000  3 %  ETA 14:02", "loss 1.8342  lr 1.9e-05  2 431 tok/s",
      "1.20 s a step  bottleneck: compute", "dev 21.8/22.0 GiB  host 96.0/96.0 GiB"};
  EXPECT_EQ(format_display(kStep, kRun, 40, 24, false), narrow);
  const std::vector<std::string> usual = {
      "step 120/4000  [#..................................]  3 %  epoch 0.09  ETA 14:02",
      "loss 1.8342  mean 1.8502  lr 1.9e-05  grad norm 0.71  2 431 tok/s",
      "1.20 s a step  compute 83 %  waits for h2d 12 %  bottleneck: compute",
      "dev 21.8/22.0 GiB  host 96.0/96.0 GiB  drives 3.0 GiB a step"};
  EXPECT_EQ(format_display(kStep, kRun, 80, 24, false), usual);
  const std::vector<std::string> wide = {
      "step 120/4000  [##..........................................................]  3 %  "
      "epoch 0.09  ETA 14:02",
      "loss 1.8342  mean 1.8502  lr 1.9e-05  grad norm 0.71  2 431 tok/s",
      "1.20 s a step  compute 83 %  waits for h2d 12 %  waits for optimizer 5 %  "
      "bottleneck: compute",
      "dev 21.8/22.0 GiB  host 96.0/96.0 GiB  drives 3.0 GiB a step"};
  EXPECT_EQ(format_display(kStep, kRun, 160, 24, false), wide);
}

// The lane that compute waited for most is named.
TEST(LiveDisplay, NamesTheLaneThatComputeWaitedForMost) {
  StepRecord step = kStep;
  step.stall_seconds = {{"h2d", 0.1}, {"read", 0.9}};
  EXPECT_EQ(
      format_display(step, {.total_steps = 4000}, 160, 24, false)[2],
      "1.20 s a step  compute 17 %  waits for read 75 %  waits for h2d 8 %  bottleneck: read");
}

// With few rows the display is one line.
TEST(LiveDisplay, IsOneLineWhereThereAreFewRows) {
  EXPECT_EQ(format_display(kStep, kRun, 80, 5, false),
            std::vector<std::string>{format_live_line(kStep, kRun, 80, false)});
}

// No line of the display is wider than its columns.
TEST(LiveDisplay, NeverGoesBeyondTheColumns) {
  for (int columns = 1; columns < 200; ++columns) {
    for (const std::string& line : format_display(kStep, kRun, columns, 24, false)) {
      EXPECT_LE(line.size(), static_cast<size_t>(columns));
    }
  }
}

// The display is redrawn from its first line, with everything below erased.
TEST(LiveDisplay, RedrawsAllItsLinesInPlace) {
  Pipe pipe;
  {
    LiveLine line({.fd = pipe.fd(), .terminal = true, .columns = 60, .rows = 24});
    line.show(kStep, kRun);
    line.show(kStep, kRun);
    line.clear();
  }
  const std::string text = pipe.text();
  const std::string up = "\x1b[3A\r\x1b[J";
  const size_t again = text.find(up);
  ASSERT_NE(again, std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(again), '\n'), 3);
  EXPECT_TRUE(text.ends_with(up));
}

// The line is cleared for a message.
TEST(LiveLine, ClearsItselfForAMessage) {
  Pipe pipe;
  LiveLine line({.fd = pipe.fd(), .terminal = true, .columns = 60, .rows = 5});
  line.clear();
  line.show({.step = Step(1)}, {.total_steps = 2});
  line.clear();
  line.finish();
  EXPECT_TRUE(pipe.text().ends_with("\r\x1b[K"));
}

// Goal: where a signal's handler printed below the display, the old display goes, the words stay
// whole, and the new display stands below them. Nothing is erased where no display was drawn.
TEST(LiveDisplay, GoesWhereSomethingWasPrintedBelow) {
  Pipe pipe;
  LiveLine line({.fd = pipe.fd(), .terminal = true, .columns = 60, .rows = 24});
  line.make_room_for("\nstopping\n");
  line.show(kStep, kRun);
  const std::string words(70, 'x');  // two rows of the terminal
  line.make_room_for("\nstopping\n" + words + "\n");
  line.show(kStep, kRun);
  const std::string text = pipe.text();
  // Three rows up in the display, one for its end of line, one for the first words, two for the
  // others.
  const size_t erased = text.find("\x1b[7A\r\x1b[Jstopping\n" + words + "\n\r\x1b[K");
  ASSERT_NE(erased, std::string::npos) << text;
  EXPECT_EQ(text.find("\x1b["), text.find("\x1b[K")) << text;
}

// Without a terminal a plain line is written every N steps.
TEST(LiveLine, WritesPlainLinesEverySoManySteps) {
  Pipe pipe;
  LiveLine line({.fd = pipe.fd(), .every_steps = 3});
  for (int64_t step = 1; step <= 7; ++step) {
    line.show({.step = Step(step), .skipped = step == 2}, {.total_steps = 7});
  }
  line.finish();
  const std::string text = pipe.text();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  // The lines are of the third and sixth step, a skipped one, and the last.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("step 2/7  loss 0.0000  skipped"), std::string::npos);
  EXPECT_NE(text.find("step 7/7"), std::string::npos);
}

// Durations are written in readable form.
TEST(LiveLine, WritesDurationsAsPeopleReadThem) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(9.4), "0:09");
  EXPECT_EQ(format_duration(842), "14:02");
  EXPECT_EQ(format_duration(11642), "3:14:02");
  EXPECT_EQ(format_duration(184440), "2d 03:14");
  EXPECT_EQ(format_duration(-1), "0:00");
}

}  // namespace
}  // namespace longshore
