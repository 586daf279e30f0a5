/* The simulator's task graph, and its heap of events. Tasks and dependencies are in slots that are reused, so that a
 * block can be taken out and put back. Start at `Sim`. */
#ifndef TASKS_H
#define TASKS_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef int32_t i32;

typedef struct { /* a block as Python passes it. Dependencies are (role, task, role, task): role 0 is the block
                    itself, and the other roles are the blocks in `Sim.roles` */
    i32 tasks, deps;
    const i64 *exe;
    const i32 *lane;
    const i32 *dep;
    const double *memory; /* bytes of each memory */
} Given;

typedef struct { /* the numbers of blocks to replace, and what replaces them */
    i32 count;
    const i32 *id;
    const Given *const *given;
} Change;

typedef struct { /* the bytes that the strategy needs of each memory, and the bytes that there are */
    i32 count;
    const double *need, *have;
} Memory;

typedef struct { /* the part of a task that `Saved` does not hold: its work, its key, its lane and its dependencies */
    i64 exe, key;
    i32 lane, succ, pred, gone;
} Task;

typedef struct { /* a task in the timeline. want: the latest end of the tasks it depends on; out: how many of
                    these have no place */
    i64 ready, start, end, want;
    i32 prev, next, out, placed;
} Time;

typedef struct {
    i32 from, to, next_s, prev_s, next_p, prev_p;
} Dep;

typedef struct {
    i32 *slots, *deps;
    i32 tasks, ndeps;
    const double *memory;
} Block;

typedef struct {
    i64 time, key;
    i32 task, place;
} Event;

typedef struct {
    i32 slot;
    Time was;
} Saved;

typedef struct {
    i32 id;
    Block was;
} Old;

#define VECTOR(type, name) type *name; i32 name##_n, name##_cap

/* ---- the timeline in order, for looks at its neighbours (`lookahead.h`) ---- */

typedef struct { /* a task. `first`: the first of its successors, which end where the next task's begin */
    i64 exe, key, ready, end;
    i32 lane, first;
} Node;

typedef struct { /* a task that has no place yet. want, out: as in `Time`; arcs: the first of its arcs in a look */
    i64 want;
    i32 out, arcs;
} State;

typedef struct {
    i32 from, to, next;
} Arc;

enum {
    POINTS = 16,   /* points of a timeline at which its state is kept; a look begins at one of them */
    BUCKETS = 16384 /* buckets of time, in which the events of a look wait */
};

typedef struct {
    i32 known, tasks; /* known: whether this is the current timeline; tasks: how many are its own, not a look's */
    VECTOR(Node, node);
    VECTOR(i32, slot); /* of each task in this order; `rank` is the inverse */
    VECTOR(i32, succ);
    VECTOR(Arc, arc);
    VECTOR(i64, fresh); /* when each of a look's tasks is ready, as far as that is known */
    State *state, *states;
    i64 *lanes_at, *free_at, *left; /* of each lane: when it is free, and the work left on it; lanes_at keeps both */
    i32 *rank, *own, *link; /* link: the next task in the same bucket */
    i32 state_cap, states_cap, lanes_cap, rank_cap, link_cap;
    i32 shift, opened; /* shift: a bucket is 1 << shift ticks long; opened: the open bucket */
    i32 bucket[BUCKETS];
    uint64_t filled[BUCKETS / 64];
} Order;

typedef struct {
    i32 lanes, nblocks;
    Block *blocks;
    i32 (*roles)[2]; /* of each block: the other blocks that its dependencies connect */
    VECTOR(Task, task);
    VECTOR(Dep, dep);
    Time *time;      /* as long as task */
    i32 *stamp;      /* of each task: the delta that saved it last */
    i32 *marked;     /* of each task: the delta that listed it as affected */
    VECTOR(i32, free_task);
    VECTOR(i32, free_dep);
    VECTOR(Event, heap);
    VECTOR(Saved, saved);
    VECTOR(Old, old);
    VECTOR(i32, affected);
    VECTOR(i32, outs); /* tasks that had no place at some time of this delta */
    i32 *cursor, *cursor_stamp;
    i64 *left; /* of each lane: ticks of the tasks that have no place yet */
    i32 now, open;
    i64 visited;
    Order order;
} Sim;

static void *grown(void *data, i32 *cap, i32 need, size_t size) {
    if (need <= *cap) return data;
    i32 cap2 = *cap ? *cap : 64;
    while (cap2 < need) cap2 *= 2;
    *cap = cap2;
    void *made = realloc(data, (size_t)cap2 * size);
    if (!made) abort();
    return made;
}
#define PUSH(s, name, value)                                                                                         \
    do {                                                                                                             \
        (s)->name = grown((s)->name, &(s)->name##_cap, (s)->name##_n + 1, sizeof *(s)->name);                        \
        (s)->name[(s)->name##_n++] = (value);                                                                        \
    } while (0)

/* ---- heap of events, the earliest first ---- */

/* This has no branches, as a processor cannot predict which of two events comes first. */
static inline int before(const Event *a, const Event *b) {
    return (a->time < b->time) | ((a->time == b->time) & (a->key < b->key));
}

static inline void rise(Event *heap, i32 i, Event e) {
    while (i) {
        i32 up = (i - 1) / 4;
        if (!before(&e, &heap[up])) break;
        heap[i] = heap[up];
        i = up;
    }
    heap[i] = e;
}

static void push(Sim *s, i64 time, i32 task, i32 place) {
    Event e = {time, s->task[task].key, task, place};
    PUSH(s, heap, e);
    rise(s->heap, s->heap_n - 1, e);
}

/* Moves the hole down to a leaf, where the last event mostly belongs, and lets that event rise from there. */
static Event pop(Sim *s) {
    Event *heap = s->heap, top = heap[0], last = heap[--s->heap_n];
    i32 i = 0, n = s->heap_n;
    for (;;) {
        i32 c = 4 * i + 1;
        if (c + 4 > n) break;
        i32 left = c + before(&heap[c + 1], &heap[c]), right = c + 2 + before(&heap[c + 3], &heap[c + 2]);
        i32 best = before(&heap[right], &heap[left]) ? right : left;
        heap[i] = heap[best];
        i = best;
    }
    i32 c = 4 * i + 1;
    if (c < n) {
        i32 best = c;
        for (i32 k = c + 1; k < n; k++)
            if (before(&heap[k], &heap[best])) best = k;
        heap[i] = heap[best];
        i = best;
    }
    rise(heap, i, last);
    return top;
}

/* ---- the graph ---- */

static i32 new_slot(Sim *s) {
    if (s->free_task_n) return s->free_task[--s->free_task_n];
    if (s->task_n == s->task_cap) {
        i32 cap = s->task_cap;
        s->task = grown(s->task, &s->task_cap, s->task_n + 1, sizeof(Task));
        s->time = realloc(s->time, (size_t)s->task_cap * sizeof(Time));
        s->stamp = realloc(s->stamp, (size_t)s->task_cap * sizeof(i32));
        s->marked = realloc(s->marked, (size_t)s->task_cap * sizeof(i32));
        if (!s->time || !s->stamp || !s->marked) abort();
        memset(s->stamp + cap, 0, (size_t)(s->task_cap - cap) * sizeof(i32));
        memset(s->marked + cap, 0, (size_t)(s->task_cap - cap) * sizeof(i32));
    }
    return s->task_n++;
}

static void link_dep(Sim *s, i32 d) {
    Dep *e = &s->dep[d];
    Task *f = &s->task[e->from], *t = &s->task[e->to];
    e->prev_s = e->prev_p = -1;
    e->next_s = f->succ;
    if (f->succ >= 0) s->dep[f->succ].prev_s = d;
    f->succ = d;
    e->next_p = t->pred;
    if (t->pred >= 0) s->dep[t->pred].prev_p = d;
    t->pred = d;
}

static void unlink_dep(Sim *s, i32 d) {
    Dep *e = &s->dep[d];
    if (e->prev_s >= 0) s->dep[e->prev_s].next_s = e->next_s;
    else s->task[e->from].succ = e->next_s;
    if (e->next_s >= 0) s->dep[e->next_s].prev_s = e->prev_s;
    if (e->prev_p >= 0) s->dep[e->prev_p].next_p = e->next_p;
    else s->task[e->to].pred = e->next_p;
    if (e->next_p >= 0) s->dep[e->next_p].prev_p = e->prev_p;
}

static i64 key_of(i32 block, i32 task) { return ((i64)block << 24) + task; }

static void make_tasks(Sim *s, i32 id, const Given *g) {
    Block *b = &s->blocks[id];
    b->tasks = g->tasks;
    b->ndeps = g->deps;
    b->memory = g->memory;
    b->slots = malloc(sizeof(i32) * (size_t)(g->tasks + 1));
    b->deps = malloc(sizeof(i32) * (size_t)(g->deps + 1));
    if (!b->slots || !b->deps) abort();
    for (i32 i = 0; i < g->tasks; i++) {
        i32 slot = new_slot(s);
        b->slots[i] = slot;
        s->task[slot] = (Task){g->exe[i], key_of(id, i), g->lane[i], -1, -1, 0};
        s->time[slot] = (Time){0, 0, 0, 0, -1, -1, 0, 0};
        s->stamp[slot] = s->marked[slot] = 0;
    }
}

static i32 block_of(const Sim *s, i32 id, i32 role) { return role ? s->roles[id][role - 1] : id; }

static void make_deps(Sim *s, i32 id, const Given *g) {
    Block *b = &s->blocks[id];
    for (i32 i = 0; i < g->deps; i++) {
        const i32 *q = g->dep + 4 * (size_t)i;
        i32 from = s->blocks[block_of(s, id, q[0])].slots[q[1]];
        i32 to = s->blocks[block_of(s, id, q[2])].slots[q[3]];
        i32 d;
        if (s->free_dep_n) d = s->free_dep[--s->free_dep_n];
        else {
            d = s->dep_n;
            PUSH(s, dep, ((Dep){0}));
        }
        s->dep[d].from = from;
        s->dep[d].to = to;
        b->deps[i] = d;
        link_dep(s, d);
    }
}

static void free_block(Sim *s, Block *b) {
    for (i32 i = 0; i < b->tasks; i++) PUSH(s, free_task, b->slots[i]);
    for (i32 i = 0; i < b->ndeps; i++) PUSH(s, free_dep, b->deps[i]);
    free(b->slots);
    free(b->deps);
    *b = (Block){0};
}
#endif
