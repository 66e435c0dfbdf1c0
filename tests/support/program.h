// The program `jiffy` as a child process, as a user and a script see it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <string>
#include <vector>

namespace jiffy {

#ifdef JIFFY_PROGRAM
inline constexpr const char* kProgram = JIFFY_PROGRAM;
#else
inline constexpr const char* kProgram = nullptr;
#endif

struct Outcome {
  int exit_code = -1;  // -1: it did not end by exit()
  std::string out, err;
};

inline std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

// The program with these arguments, running.
class Child {
 public:
  explicit Child(const std::string& arguments) {
    std::vector<std::string> strings = words(arguments);
    strings.insert(strings.begin(), kProgram);
    std::vector<char*> argv;
    for (std::string& s : strings) argv.push_back(s.data());
    argv.push_back(nullptr);
    EXPECT_EQ(pipe2(out_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err_, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_[1], STDOUT_FILENO);
      dup2(err_[1], STDERR_FILENO);
      execv(kProgram, argv.data());
      _exit(127);
    }
    close(out_[1]);
    close(err_[1]);
  }

  void signal(int number) const { kill(pid_, number); }

  Outcome wait() {
    Outcome outcome;
    pollfd fds[2] = {{out_[0], POLLIN, 0}, {err_[0], POLLIN, 0}};
    std::string* texts[2] = {&outcome.out, &outcome.err};
    for (int open = 2; open > 0;) {
      if (poll(fds, 2, -1) < 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (fds[i].fd < 0 || fds[i].revents == 0) continue;
        char buffer[4096];
        const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
        if (n > 0) {
          texts[i]->append(buffer, static_cast<size_t>(n));
        } else {
          close(fds[i].fd);
          fds[i].fd = -1;
          --open;
        }
      }
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    return outcome;
  }

 private:
  int out_[2] = {-1, -1}, err_[2] = {-1, -1};
  pid_t pid_ = -1;
};

inline Outcome run(const std::string& arguments) { return Child(arguments).wait(); }

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace jiffy
