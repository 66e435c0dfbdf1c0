"""gdb commands for jiffy's fibers, in a live process or a core file.

    (gdb) source tools/jiffy-gdb.py
    (gdb) jiffy fibers          all fibers: id, name, Cpu, state, class, where each is suspended
    (gdb) jiffy bt ID           the stack of one fiber
    (gdb) jiffy bt all          the stacks of all

Needs debug information (-g; any optimisation) of the library, static or shared. Nothing is called
in the process and nothing in it is changed, so all of it works on a core file too.

How it finds things:
  runtimes   from the Cpus: those of the signal slots (machine/host/signals.cc), which need no
             thread-local storage, and the thread-local word of each thread, which also finds a
             simulation that is running
  fibers     all units in the slabs of a runtime's stack pools
  stacks     a fiber that does not run has stopped inside jump_fcontext, which left its registers
             on its stack (see SuspendedFrame). An unwinder of ours tells gdb that the selected
             thread's innermost frame was "called" from there; gdb's own unwinders do the rest.
"""

import re

import gdb
import gdb.unwinder


class SuspendedFrame:
    """The frame that jump_fcontext and make_fcontext of Boost.Context leave (x86-64, System V):

    +0x00 MXCSR, x87 control word   +0x08 r12   +0x10 r13   +0x18 r14   +0x20 r15
    +0x28 rbx                       +0x30 rbp   +0x38 rip   +0x40 the stack pointer after it
    """

    OFFSETS = {"r12": 0x08, "r13": 0x10, "r14": 0x18, "r15": 0x20, "rbx": 0x28, "rbp": 0x30,
               "rip": 0x38}
    SIZE = 0x40

    def __init__(self, fctx):
        memory = gdb.selected_inferior().read_memory(fctx, self.SIZE)
        self.registers = {
            name: int.from_bytes(memory[offset:offset + 8], "little")
            for name, offset in self.OFFSETS.items()
        }
        self.registers["rsp"] = fctx + self.SIZE


# --- Reading C++ objects without the pretty printers of libstdc++.


def pointer_inside(value):
    """Of a unique_ptr or an atomic: the one member that it consists of."""
    kind = value.type.strip_typedefs()
    inner = kind.template_argument(0)
    if kind.name.startswith("std::unique_ptr"):
        inner = inner.pointer()
    return value.address.cast(inner.pointer()).dereference()


def elements(vector):
    """Of a std::vector."""
    impl = vector["_M_impl"]
    item, end = impl["_M_start"], impl["_M_finish"]
    while item != end:
        yield item.dereference()
        item += 1


def enum_name(value):
    """ "sleeping" for jiffy::FiberState::kSleeping."""
    name = str(value).rsplit("::", 1)[-1]
    return name[1:].lower() if re.fullmatch(r"k[A-Z]\w*", name) else name


# --- Finding runtimes and fibers.


def lookup(name):
    try:
        return gdb.lookup_type(name)
    except gdb.error:
        raise gdb.GdbError(
            f"There is no debug information for {name}: build jiffy with -g, or load its symbols."
        ) from None


def cpus_of_signal_slots():
    """The Cpus whose threads have a signal stack: all of the host machine."""
    try:
        # gdb finds a variable inside a function by its linker symbol only, which has no type.
        where = gdb.parse_and_eval("&'jiffy::(anonymous namespace)::registration()::instance'")
    except gdb.error:
        return
    kind = lookup("jiffy::(anonymous namespace)::Registration")
    registration = where.cast(kind.pointer()).dereference()
    arena = registration["arena"]
    if int(arena) == 0:
        return
    slot_type = lookup("jiffy::SignalSlot").pointer()
    size = int(arena.cast(slot_type).dereference()["kSize"])
    taken = registration["taken"]
    flags = gdb.selected_inferior().read_memory(int(taken.address), taken.type.sizeof)
    for i, flag in enumerate(flags):
        if flag != b"\0":
            yield (arena + i * size).cast(slot_type).dereference()["cpu"]


def cpu_of_thread():
    """Of the selected thread; None where it is no Cpu, or its thread-local words cannot be read."""
    try:
        cpu = gdb.parse_and_eval("jiffy::jiffy_this_cpu_words")["cpu"]
        return cpu if int(cpu) != 0 else None
    except gdb.error:
        return None


class AllThreads:
    """Iterates with each thread selected; afterwards the first one is selected again."""

    def __iter__(self):
        selected = gdb.selected_thread()
        try:
            for thread in sorted(gdb.selected_inferior().threads(), key=lambda t: t.num):
                thread.switch()
                yield thread
        finally:
            if selected is not None:
                selected.switch()


def runtimes():
    """The RuntimeState of each runtime that has a Cpu, in a constant order."""
    found = {}
    cpus = list(cpus_of_signal_slots())
    for _ in AllThreads():
        cpus.append(cpu_of_thread())
    for cpu in cpus:
        if cpu is None or int(cpu) == 0:
            continue
        try:
            state = cpu["state"]
            if int(state) != 0:
                found[int(state)] = state.dereference()
        except gdb.MemoryError:
            continue
    return [found[address] for address in sorted(found)]


class FiberLayout:
    """Where a unit of stack keeps its fiber: StackSlab::fiber_at() of fiber/stack_pool.cc."""

    COLOURS = 8
    COLOUR_STEP = 128

    def __init__(self):
        self.type = lookup("jiffy::Fiber")
        self.size = (self.type.sizeof + 63) // 64 * 64

    def fiber_at(self, slab, i):
        top = int(slab["base"]) + (i + 1) * int(slab["unit_size"])
        address = top - i % self.COLOURS * self.COLOUR_STEP - self.size
        return gdb.Value(address).cast(self.type.pointer()).dereference()


FIBER_MAGIC = 0x4A694659
GCORE_ADVICE = (
    "In a core file from gdb's gcore they are missing: it leaves out what follows the first guard "
    "page of a mapping. A core file that the kernel wrote is whole.")


class Fiber:
    def __init__(self, value):
        self.value = value
        self.id = int(value["id"])
        self.name = value["name"].string(errors="replace") or "-"
        self.context = value["context"]
        self.fctx = int(self.context["fctx"])
        cpu = pointer_inside(value["cpu"])
        self.cpu = cpu.dereference() if int(cpu) != 0 else None
        self.running = self.cpu is not None and int(self.cpu["current"]) == int(value.address)
        self.started = bool(value["started"])
        bottom = int(self.context["stack_bottom"])
        self.stack = range(bottom, bottom + int(self.context["stack_size"]))

    def state(self):
        if self.running:
            return "running"
        name = enum_name(pointer_inside(self.value["state"]))
        return {"running": "runnable", "dead": "ended"}.get(name, name)

    def class_name(self):
        return enum_name(self.value["sched_class"])

    def head(self):
        cpu = "-" if self.cpu is None else int(self.cpu["id"])
        return f"{self.id:8}  {self.name:23}  Cpu {cpu:<3}  {self.state():8}  {self.class_name():5}"


def fibers_of(state):
    """All fibers that have been spawned and not freed, by id."""
    layout = FiberLayout()
    pools = [pointer_inside(state["stacks"])]
    pools += [pointer_inside(state["tcb_stacks"])]
    pools += [pointer_inside(pool) for pool in elements(state["other_stacks"])]
    result = []
    unreadable = 0
    for pool in pools:
        if int(pool) == 0:
            continue
        slab_pointer = pointer_inside(pool.dereference()["slabs_"])
        while int(slab_pointer) != 0:
            slab = slab_pointer.dereference()
            slab_pointer = slab["next"]
            for i in range(int(slab["count"])):
                fiber = layout.fiber_at(slab, i)
                if int(fiber["magic"]) != FIBER_MAGIC:
                    unreadable += 1
                    continue
                if enum_name(pointer_inside(fiber["state"])) != "free":
                    result.append(Fiber(fiber))
    if unreadable > 0:
        gdb.write(f"{unreadable} units of stack hold no fiber where one must be. {GCORE_ADVICE}\n")
    result.sort(key=lambda fiber: fiber.id)
    return result


# --- Stacks.


class FrameId:
    def __init__(self, sp, pc):
        self.sp = sp
        self.pc = pc


class FiberUnwinder(gdb.unwinder.Unwinder):
    """While `target` is set, the innermost frame of the thread returns into that fiber."""

    def __init__(self):
        super().__init__("jiffy fibers")
        self.target = None
        self.innermost = None

    def __call__(self, pending_frame):
        if self.target is None:
            return None
        here = (int(pending_frame.read_register("rsp")), int(pending_frame.read_register("rip")))
        if here != self.innermost:
            return None
        # A stack pointer of zero: gdb takes a caller that lies below its callee for a damaged
        # stack, and a fiber may lie anywhere.
        unwound = pending_frame.create_unwind_info(FrameId(gdb.Value(0), gdb.Value(here[1])))
        word = gdb.lookup_type("unsigned long")
        for name, value in self.target.registers.items():
            unwound.add_saved_register(name, gdb.Value(value).cast(word))
        return unwound


UNWINDER = FiberUnwinder()
gdb.unwinder.register_unwinder(None, UNWINDER, replace=True)


class Suspended:
    """With it, the frames of the selected thread are its innermost one and those of a fiber."""

    def __init__(self, fiber):
        self.fiber = fiber

    def __enter__(self):
        innermost = gdb.newest_frame()
        UNWINDER.innermost = (int(innermost.read_register("rsp")),
                              int(innermost.read_register("rip")))
        UNWINDER.target = SuspendedFrame(self.fiber.fctx)
        gdb.invalidate_cached_frames()

    def __exit__(self, *_):
        UNWINDER.target = None
        gdb.invalidate_cached_frames()


def short_name(frame):
    """The function without its arguments and template arguments."""
    name = frame.name() or "??"
    previous = None
    while name != previous:
        previous, name = name, re.sub(r"(?<!operator)<[^<>]*>", "", name)
    return re.sub(r"(?<!operator)\([^()]*\)( const)?$", "", name)


def describe(frame):
    sal = frame.find_sal()
    where = f" at {sal.symtab.filename.rsplit('/', 1)[-1]}:{sal.line}" if sal.symtab else ""
    return short_name(frame) + where


def is_internal(frame):
    return short_name(frame).startswith(("jiffy::", "std::", "__", "??"))


def summary_of_frames(frame):
    """The innermost frame that is not the runtime's, and what it called there. Of a fiber of the
    runtime's own: its main function, which is what fiber_entry() calls."""
    called = None
    for _ in range(64):
        if frame is None or short_name(frame) == "jiffy::fiber_entry":
            break
        if not is_internal(frame):
            return describe(frame) + (f", in {short_name(called)}" if called is not None else "")
        called = frame
        frame = frame.older()
    return describe(called) if called is not None else "?"


def where(fiber):
    if fiber.running:
        return "(runs)"
    if not fiber.started:
        return "(has not run yet)"
    try:
        with Suspended(fiber):
            return summary_of_frames(gdb.newest_frame().older())
    except gdb.error as error:
        return f"({error})"


def thread_of(fiber):
    for thread in AllThreads():
        if int(gdb.newest_frame().read_register("rsp")) in fiber.stack:
            return thread
        cpu = cpu_of_thread()
        if cpu is not None and int(cpu) == int(fiber.cpu.address):
            return thread
    return None


def print_running_stack(fiber):
    thread = thread_of(fiber)
    if thread is None:
        gdb.write("  (runs, and its thread was not found)\n")
        return
    selected = gdb.selected_thread()
    gdb.write(f"  (runs on thread {thread.num})\n")
    thread.switch()
    gdb.execute("backtrace")
    selected.switch()


def print_suspended_stack(fiber):
    with Suspended(fiber):
        text = gdb.execute("backtrace", to_string=True)
    # Frame 0 is the thread's, not the fiber's.
    text = text[text.index("\n#1") + 1:] if "\n#1" in text else "(no frames)\n"
    gdb.write(re.sub(r"^#(\d+) +", lambda m: f"#{int(m.group(1)) - 1:<3}", text,
                     flags=re.MULTILINE))


def print_stack(fiber):
    gdb.write(f"\n{fiber.head()}\n")
    if fiber.running:
        print_running_stack(fiber)
    elif enum_name(pointer_inside(fiber.value["state"])) == "dead":
        gdb.write("  (ended; its stack is no more)\n")
    elif not fiber.started:
        gdb.write(f"  (has not run yet; it will run {fiber.value['invoke']})\n")
    else:
        print_suspended_stack(fiber)


# --- The commands.


def checked_runtimes():
    if gdb.selected_thread() is None:
        raise gdb.GdbError("There is no process: attach to one, run one, or load a core file.")
    lookup("jiffy::Fiber")
    states = runtimes()
    if not states:
        raise gdb.GdbError("No running jiffy runtime was found in this process.")
    return states


def explaining_errors(invoke):
    """Memory that cannot be read ends a command with a sentence, not with a Python trace."""

    def checked(self, argument, from_tty):
        try:
            invoke(self, argument, from_tty)
        except gdb.MemoryError as error:
            raise gdb.GdbError(f"{error}. {GCORE_ADVICE}") from None

    return checked


class JiffyCommand(gdb.Command):
    """Shows jiffy's fibers: jiffy fibers, jiffy bt ID, jiffy bt all."""

    def __init__(self):
        super().__init__("jiffy", gdb.COMMAND_STACK, prefix=True)


class FibersCommand(gdb.Command):
    """All fibers: id, name, Cpu, state, class, and where each is suspended."""

    def __init__(self):
        super().__init__("jiffy fibers", gdb.COMMAND_STACK)

    @explaining_errors
    def invoke(self, argument, from_tty):
        states = checked_runtimes()
        for number, state in enumerate(states, 1):
            fibers = fibers_of(state)
            gdb.write(f"Runtime {number} of {len(states)}: {len(fibers)} fibers\n")
            gdb.write("      id  name                     on       state     class  suspended in\n")
            for fiber in fibers:
                gdb.write(f"{fiber.head()}  {where(fiber)}\n")


class BacktraceCommand(gdb.Command):
    """The stack of a fiber, by its id, or of all of them: jiffy bt ID, jiffy bt all."""

    def __init__(self):
        super().__init__("jiffy bt", gdb.COMMAND_STACK)

    @explaining_errors
    def invoke(self, argument, from_tty):
        wanted = argument.strip()
        if not re.fullmatch(r"\d+|all", wanted):
            raise gdb.GdbError("usage: jiffy bt ID, or jiffy bt all; the ids are those of jiffy fibers")
        shown = 0
        for state in checked_runtimes():
            for fiber in fibers_of(state):
                if wanted in ("all", str(fiber.id)):
                    print_stack(fiber)
                    shown += 1
        if shown == 0:
            raise gdb.GdbError(f"There is no fiber {wanted}: see jiffy fibers.")


JiffyCommand()
FibersCommand()
BacktraceCommand()
