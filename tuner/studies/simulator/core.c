/* The execution simulator computes timelines of task graphs, in full and by differences (Jia, Zaharia and Aiken,
 * "Beyond Data and Model Parallelism for Deep Neural Networks", section 5).
 *
 * Every lane (a device, or a connection between devices) runs one task at a time, in the order of their ready times,
 * then of their keys. A task is ready when all tasks it depends on have ended. Times are whole ticks, and every task
 * takes at least one. So the timeline of a graph is unique, and both algorithms find the same one to the last tick.
 *
 * Tasks come in blocks (an operator's, an edge's, a layer's). `sim_replace` exchanges blocks, `sim_delta` brings the
 * timeline up to date, and `sim_rollback` takes both back. `tasks.h` has the graph. Start at `sim_full` and
 * `sim_delta`.
 */
#include "lookahead.h"
#include "tasks.h"

/* ---- the timeline ---- */

static void save(Sim *s, i32 t) {
    if (s->stamp[t] == s->now) return;
    s->stamp[t] = s->now;
    Saved v = {t, s->time[t]};
    PUSH(s, saved, v);
}

static void take_from_lane(Sim *s, i32 t) {
    i32 p = s->time[t].prev, n = s->time[t].next;
    save(s, p);
    save(s, n);
    s->time[p].next = n;
    s->time[n].prev = p;
}

static void check(Sim *s, i32 t) {
    if (t >= s->lanes) push(s, s->time[t].ready, t, 0);
}

static void recompute(Sim *s, i32 t) {
    i64 want = 0;
    i32 out = 0;
    for (i32 d = s->task[t].pred; d >= 0; d = s->dep[d].next_p) {
        const Time *p = &s->time[s->dep[d].from];
        out += !p->placed;
        if (p->end > want) want = p->end;
    }
    s->time[t].want = want;
    s->time[t].out = out;
}

/* Updates the successors of a task that has its place and ends at another time than before. */
static void tell(Sim *s, i32 t, i64 was, int returned) {
    i64 end = s->time[t].end;
    for (i32 d = s->task[t].succ; d >= 0; d = s->dep[d].next_s) {
        i32 n = s->dep[d].to;
        Time *v = &s->time[n];
        i64 want = v->want;
        if (!returned && end <= want && was < want) continue; /* another task still ends last */
        save(s, n);
        v->out -= returned;
        if (end > want) v->want = end;
        else if (was == want && end < want) {
            i32 out = v->out;
            recompute(s, n);
            v->out = out;
        }
        if (v->out || (!returned && v->want == want)) continue;
        if (!v->placed || v->want < v->ready) push(s, v->want, n, 1);
        else if (v->want > v->ready) push(s, v->ready, n, 0);
    }
}

static int settle(Sim *s, i32 t, int returned, int inserted, i64 limit) {
    Time *v = &s->time[t];
    i64 free_at = s->time[v->prev].end, was = v->end;
    i64 start = v->ready > free_at ? v->ready : free_at;
    i64 end = start + s->task[t].exe;
    i32 lane = s->task[t].lane;
    s->visited++;
    s->cursor[lane] = t;
    s->cursor_stamp[lane] = s->now;
    if (end > limit) return 1;
    if (inserted) check(s, v->next);
    if (start == v->start && end == was && !returned) return 0;
    save(s, t);
    v->start = start;
    v->end = end;
    if (!inserted) check(s, v->next);
    tell(s, t, was, returned);
    return 0;
}

static void take_out(Sim *s, i32 t) {
    i32 lane = s->task[t].lane;
    save(s, t);
    PUSH(s, outs, t);
    check(s, s->time[t].next);
    s->cursor[lane] = s->time[t].prev;
    s->cursor_stamp[lane] = s->now;
    take_from_lane(s, t);
    s->time[t].placed = 0;
    for (i32 d = s->task[t].succ; d >= 0; d = s->dep[d].next_s) {
        i32 n = s->dep[d].to;
        save(s, n);
        s->time[n].out++;
        if (s->time[n].placed) check(s, n);
    }
}

static void insert(Sim *s, i32 t, i64 time) {
    i32 lane = s->task[t].lane;
    i64 key = s->task[t].key;
    i32 at = s->cursor_stamp[lane] == s->now ? s->cursor[lane] : lane;
    for (;;) {
        i32 n = s->time[at].next;
        if (n == lane) break;
        if (s->time[n].ready > time || (s->time[n].ready == time && s->task[n].key > key)) break;
        at = n;
    }
    i32 n = s->time[at].next;
    save(s, at);
    save(s, n);
    save(s, t);
    s->time[at].next = t;
    s->time[n].prev = t;
    s->time[t].prev = at;
    s->time[t].next = n;
    s->time[t].ready = time;
    s->time[t].placed = 1;
}

static i64 makespan(Sim *s) {
    i64 found = 0;
    for (i32 l = 0; l < s->lanes; l++)
        if (s->time[s->time[l].prev].end > found) found = s->time[s->time[l].prev].end;
    return found;
}

static void mark(Sim *s, i32 t) {
    if (s->marked[t] == s->now) return;
    s->marked[t] = s->now;
    PUSH(s, affected, t);
}

/* ---- what Python calls ---- */

Sim *sim_new(i32 lanes, i32 nblocks, const i32 (*roles)[2]) {
    Sim *s = calloc(1, sizeof(Sim));
    if (!s) return NULL;
    s->lanes = lanes;
    s->nblocks = nblocks;
    s->blocks = calloc((size_t)nblocks + 1, sizeof(Block));
    s->roles = malloc(((size_t)nblocks + 1) * sizeof *roles);
    s->cursor = calloc((size_t)lanes, sizeof(i32));
    s->cursor_stamp = calloc((size_t)lanes, sizeof(i32));
    s->left = calloc((size_t)lanes, sizeof(i64));
    if (!s->blocks || !s->roles || !s->cursor || !s->cursor_stamp || !s->left) abort();
    memcpy(s->roles, roles, (size_t)nblocks * sizeof *roles);
    for (i32 l = 0; l < lanes; l++) {
        i32 slot = new_slot(s);
        s->task[slot] = (Task){0, -1, l, -1, -1, 0};
        s->time[slot] = (Time){-1, -1, 0, 0, slot, slot, 0, 1};
    }
    return s;
}

void sim_free(Sim *s) {
    for (i32 i = 0; i < s->nblocks; i++) free(s->blocks[i].slots), free(s->blocks[i].deps);
    for (i32 i = 0; i < s->old_n; i++) free(s->old[i].was.slots), free(s->old[i].was.deps);
    free(s->blocks), free(s->roles), free(s->task), free(s->dep), free(s->time), free(s->stamp), free(s->marked);
    free(s->free_task), free(s->free_dep), free(s->heap), free(s->saved), free(s->old), free(s->affected), free(s->outs);
    free(s->cursor), free(s->cursor_stamp), free(s->left), free_order(&s->order), free(s);
}

/* Builds the graph from nothing: all blocks, in the order of their numbers. */
void sim_build(Sim *s, const Given *const *given) {
    for (i32 i = 0; i < s->nblocks; i++) free(s->blocks[i].slots), free(s->blocks[i].deps);
    for (i32 i = 0; i < s->old_n; i++) free(s->old[i].was.slots), free(s->old[i].was.deps);
    s->old_n = s->saved_n = s->affected_n = s->free_task_n = s->free_dep_n = s->dep_n = s->open = 0;
    s->task_n = s->lanes;
    for (i32 i = 0; i < s->nblocks; i++) make_tasks(s, i, given[i]);
    for (i32 i = 0; i < s->nblocks; i++) make_deps(s, i, given[i]);
}

/* Puts a task whose dependencies have all ended last on its lane. */
static inline Time *place(Sim *s, i32 t) {
    i32 lane = s->task[t].lane, p = s->time[lane].prev;
    Time *v = &s->time[t];
    v->ready = v->want;
    v->start = v->ready > s->time[p].end ? v->ready : s->time[p].end;
    v->end = v->start + s->task[t].exe;
    v->placed = 1;
    v->prev = p;
    v->next = lane;
    s->time[p].next = s->time[lane].prev = t;
    s->visited++;
    return v;
}

/* Tells the successors of a task that it is placed. Those that wait for nothing else become events. */
static inline void release(Sim *s, i32 t) {
    const Time *v = &s->time[t];
    for (i32 d = s->task[t].succ; d >= 0; d = s->dep[d].next_s) {
        i32 n = s->dep[d].to;
        Time *w = &s->time[n];
        if (v->end > w->want) w->want = v->end;
        if (!--w->out) push(s, w->want, n, 1);
    }
}

/* Runs algorithm 1 on the graph as it was built, and returns the makespan. */
i64 sim_full(Sim *s) {
    s->order.known = 0;
    for (i32 l = 0; l < s->lanes; l++) s->time[l].prev = s->time[l].next = l;
    s->heap_n = 0;
    for (i32 i = 0; i < s->nblocks; i++)
        for (i32 k = 0; k < s->blocks[i].tasks; k++) {
            i32 t = s->blocks[i].slots[k], n = 0;
            for (i32 d = s->task[t].pred; d >= 0; d = s->dep[d].next_p) n++;
            s->time[t] = (Time){0, 0, 0, 0, -1, -1, n, 0};
            if (!n) push(s, 0, t, 1);
        }
    i64 last = 0;
    while (s->heap_n) {
        i32 t = pop(s).task;
        Time *v = place(s, t);
        if (v->end > last) last = v->end;
        release(s, t);
    }
    return last;
}

/* Exchanges blocks, including their dependencies on blocks that stay. */
void sim_replace(Sim *s, i32 count, const i32 *id, const Given *const *given) {
    s->now++;
    s->open = 1;
    s->saved_n = s->affected_n = s->outs_n = s->old_n = s->heap_n = 0;
    for (i32 i = 0; i < count; i++) {
        Old o = {id[i], s->blocks[id[i]]};
        PUSH(s, old, o);
        for (i32 k = 0; k < o.was.tasks; k++) s->task[o.was.slots[k]].gone = 1;
    }
    for (i32 i = 0; i < count; i++) {
        const Block *b = &s->old[i].was;
        for (i32 k = 0; k < b->ndeps; k++) {
            i32 to = s->dep[b->deps[k]].to;
            unlink_dep(s, b->deps[k]);
            if (!s->task[to].gone) mark(s, to);
        }
    }
    for (i32 i = 0; i < count; i++)
        for (i32 k = 0; k < s->old[i].was.tasks; k++) take_from_lane(s, s->old[i].was.slots[k]);
    for (i32 i = 0; i < count; i++)
        for (i32 k = 0; k < s->old[i].was.tasks; k++) {
            i32 t = s->old[i].was.slots[k], n = s->time[t].next;
            while (n >= s->lanes && s->task[n].gone) n = s->time[n].next;
            check(s, n);
        }
    for (i32 i = 0; i < count; i++) make_tasks(s, id[i], given[i]);
    for (i32 i = 0; i < count; i++) make_deps(s, id[i], given[i]);
    for (i32 i = 0; i < count; i++) {
        const Block *b = &s->blocks[id[i]];
        for (i32 k = 0; k < b->tasks; k++) mark(s, b->slots[k]);
        for (i32 k = 0; k < b->ndeps; k++) mark(s, s->dep[b->deps[k]].to);
    }
}

/* Tells whether the tasks that are not placed yet keep some lane busy beyond the limit. This finds most changes that
 * are too slow early. */
static int above(Sim *s, i64 limit) {
    memset(s->left, 0, sizeof(i64) * (size_t)s->lanes);
    for (i32 i = 0; i < s->outs_n; i++)
        if (s->outs[i] >= 0) s->left[s->task[s->outs[i]].lane] += s->task[s->outs[i]].exe;
    for (i32 l = 0; l < s->lanes; l++)
        if (s->time[s->time[l].prev].end + s->left[l] > limit) return 1;
    return 0;
}

/* Simulates all that comes at or after an event again, by algorithm 1. Where most of a timeline moves, this is
 * faster than handling every task twice: where it was, and where it will be. */
static i64 rest(Sim *s, const Event *from, i64 limit) {
    i32 first = s->outs_n;
    s->heap_n = 0;
    for (i32 l = 0; l < s->lanes; l++) {
        i32 t = s->time[l].prev;
        while (t != l && (s->time[t].ready > from->time ||
                          (s->time[t].ready == from->time && s->task[t].key >= from->key))) {
            save(s, t);
            s->time[t].placed = 0;
            PUSH(s, outs, t);
            t = s->time[t].prev;
        }
        save(s, l);
        save(s, t);
        s->time[l].prev = t;
        s->time[t].next = l;
    }
    for (i32 i = 0; i < first; i++) /* tasks that have a place again are final; the others are counted once */
        if (s->time[s->outs[i]].placed) s->outs[i] = -1;
        else if (s->marked[s->outs[i]] == -s->now) s->outs[i] = -1;
        else s->marked[s->outs[i]] = -s->now;
    for (i32 i = 0; i < s->outs_n; i++) {
        i32 t = s->outs[i];
        if (t < 0 || (i >= first && s->marked[t] == -s->now)) {
            s->outs[i] = -1;
            continue;
        }
        save(s, t);
        i64 want = 0;
        i32 out = 0;
        for (i32 d = s->task[t].pred; d >= 0; d = s->dep[d].next_p) {
            const Time *p = &s->time[s->dep[d].from];
            out += !p->placed;
            if (p->placed && p->end > want) want = p->end;
        }
        s->time[t].want = want;
        s->time[t].out = out;
        if (!out) push(s, want, t, 1);
    }
    if (above(s, limit)) return -1;
    while (s->heap_n) {
        i32 t = pop(s).task;
        Time *v = place(s, t);
        i64 *left = &s->left[s->task[t].lane];
        *left -= s->task[t].exe;
        if (v->end + *left > limit) return -1;
        release(s, t);
    }
    return makespan(s);
}

/* Runs algorithm 2 and returns the makespan, or -1 if it is above `limit`. The timeline is then incomplete and must be
 * rolled back. */
i64 sim_delta(Sim *s, i64 limit) {
    for (i32 i = 0; i < s->affected_n; i++) {
        i32 t = s->affected[i];
        save(s, t);
        recompute(s, t);
        if (!s->time[t].placed) PUSH(s, outs, t);
    }
    for (i32 i = 0; i < s->affected_n; i++) {
        i32 t = s->affected[i];
        const Time *v = &s->time[t];
        if (v->placed && (v->out || v->want > v->ready)) push(s, v->ready, t, 0);
        else if (!v->out && (!v->placed || v->want < v->ready)) push(s, v->want, t, 1);
    }
    i64 budget = s->visited + (s->task_n - s->free_task_n) / 16;
    while (s->heap_n) {
        Event e = pop(s);
        if (s->visited > budget) return rest(s, &e, limit);
        i32 t = e.task;
        Time *v = &s->time[t];
        if (!e.place) {
            if (!v->placed || v->ready != e.time) continue;
            if (v->out || v->want != v->ready) {
                take_out(s, t);
                if (!v->out) push(s, v->want, t, 1);
            } else if (settle(s, t, 0, 0, limit)) return -1;
            continue;
        }
        if (v->out || v->want != e.time || (v->placed && v->ready <= e.time)) continue;
        int returned = !v->placed;
        if (!returned) { /* it is ready earlier than before */
            save(s, t);
            check(s, v->next);
            take_from_lane(s, t);
        }
        insert(s, t, e.time);
        if (settle(s, t, returned, 1, limit)) return -1;
    }
    i64 found = makespan(s);
    return found > limit ? -1 : found;
}

void sim_commit(Sim *s) {
    s->order.known = 0;
    for (i32 i = 0; i < s->old_n; i++) free_block(s, &s->old[i].was);
    s->old_n = s->saved_n = s->open = 0;
}

void sim_rollback(Sim *s) {
    if (!s->open) return;
    for (i32 i = 0; i < s->old_n; i++) {
        const Block *b = &s->blocks[s->old[i].id];
        for (i32 k = 0; k < b->ndeps; k++) unlink_dep(s, b->deps[k]);
    }
    for (i32 i = 0; i < s->saved_n; i++) s->time[s->saved[i].slot] = s->saved[i].was;
    for (i32 i = 0; i < s->old_n; i++) {
        free_block(s, &s->blocks[s->old[i].id]);
        s->blocks[s->old[i].id] = s->old[i].was;
    }
    for (i32 i = 0; i < s->old_n; i++)
        for (i32 k = 0; k < s->old[i].was.tasks; k++) s->task[s->old[i].was.slots[k]].gone = 0;
    for (i32 i = 0; i < s->old_n; i++)
        for (i32 k = 0; k < s->old[i].was.ndeps; k++) link_dep(s, s->old[i].was.deps[k]);
    s->heap_n = s->old_n = s->saved_n = s->open = 0;
}

i64 sim_count(const Sim *s, i32 block) { return s->blocks[block].tasks; }

i64 sim_visited(const Sim *s) { return s->visited; }

i64 sim_makespan(Sim *s) { return makespan(s); }

/* Writes when each of a block's tasks is ready, starts and ends, in the order of the tasks. */
void sim_times(const Sim *s, i32 block, i64 *into) {
    const Block *b = &s->blocks[block];
    for (i32 k = 0; k < b->tasks; k++) {
        const Time *v = &s->time[b->slots[k]];
        into[3 * k] = v->ready, into[3 * k + 1] = v->start, into[3 * k + 2] = v->end;
    }
}
